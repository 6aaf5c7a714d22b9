"""The gradient of the lse, read as if it were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silently wrong gradients where the statistics of the rows are not packed as [B, H, "
    "T].",
    cause="The backward kernel ignored the strides that they were declared with.",
    source="cudnn-frontend 304",
    pinned=LawAbout(
        "layout_invariance",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 2, "G": 1, "R": 2, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="dlse.contiguous()",
        after="dlse",
    ),
)
