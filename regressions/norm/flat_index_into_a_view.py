"""A view of a wider tensor, read as if it were one piece."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong values for a half of x.chunk(2, -1).",
    cause="A flat index, and no guard that copies the input.",
    source="flash-linear-attention f24317a6 (765), issue 759, in its activations",
    pinned=LawAbout(
        "differential",
        Case(
            op="l2norm",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 1, "D": 5},
            lengths=(3,),
            options={"eps": 1.0},
            layout="sliced",
        ),
    ),
    planted=Edit(
        module="kernels.norm.l2norm",
        before="x, *others = contiguous(x, *others)",
        after="others = contiguous(*others)",
    ),
)
