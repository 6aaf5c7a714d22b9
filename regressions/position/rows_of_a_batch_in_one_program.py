"""Decoding a batch, one token each."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Batched decode: row 0 of the batch is exact, all others are corrupted.",
    cause="The stride or the axis of a single token was a case of its own, and a wrong one for a "
    "batch.",
    source="mlx issue 3795",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 3, "H": 2, "D": 6, "P": 3},
            lengths=(1,),
            options={
                "interleaved": False,
                "seqlen_offsets": 4,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="batch = first_token // tokens_per_sequence + time // tokens_per_sequence",
        after="batch = first_token // tokens_per_sequence",
    ),
)
