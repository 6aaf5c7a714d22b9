"""One page looked up for a whole tile of keys."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong keys wherever a tile of keys begins in one page and ends in another.",
    cause="The last keys of a tile were read through the pointer of another page.",
    source="flash-attention 2745 (69e1bcbe)",
    pinned=LawAbout(
        "differential",
        Case(
            op="paged_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4},
            lengths=(1,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "num_splits": 1,
                "return_lse": True,
            },
            seed=3,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.paged_forward",
        before="table + (columns // size)",
        after="table + (columns * 0 + tl.min(columns, 0) // size)",
    ),
)
