"""A tile that is whole by its first key, and not by its last."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong outputs, and reads of what the kernel itself has not written yet, where the "
    "chunk is not a multiple of the tile.",
    cause="A tile was classified by its start alone.",
    source="flash-linear-attention 51a8c0a8 (1105), issue 1104, deltaformer",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="count = tl.maximum(tl.minimum(common_high, high) - first, 0) // BLOCK",
        after="count = tl.cdiv(tl.maximum(tl.minimum(common_high, high) - first, 0), BLOCK)",
    ),
)
