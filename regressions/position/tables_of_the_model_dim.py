"""Rotary tables built for the model dim instead of the head dim."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A rotary module given hidden_size as its dim: an illegal memory access as soon as "
    "the model ran under torch.compile.",
    cause="The tables were as wide as half the model dim; nothing compared them with the head, and "
    "the kernel addressed dims of a head that it does not have.",
    source="flash-linear-attention, RotaryEmbedding (report of a user)",
    pinned=LawAbout(
        "rejection",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 3, "D": 10, "P": 5},
            lengths=(7,),
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
        before="if 2 * pairs > head_dim:",
        after="if 2 * pairs > head_dim * sizes['H']:",
    ),
)
