"""Negative positions taken for 0."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Left-padded batches got wrong positions.",
    cause="Offsets, negative because of the padding, were clamped to 0 instead of refused or "
    "honoured.",
    source="flash-linear-attention 7d079d70",
    pinned=LawAbout(
        "rejection",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 1, "D": 6, "P": 3},
            lengths=(3,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="rows = offsets[:, None]",
        after="rows = offsets.clamp(min=0)[:, None]",
    ),
)
