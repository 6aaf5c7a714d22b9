"""An epsilon that is added to the root instead of under it."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Training and inference differ for keys of small norm, 1e-3 for example.",
    cause="l2norm and the recurrent kernels, which normalise for themselves, had a formula "
    "each: sqrt(sum) + eps and sqrt(sum + eps).",
    source="flash-linear-attention 9b9e47d7 and 25493c55",
    pinned=LawAbout(
        "differential",
        Case(
            op="l2norm",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 1, "D": 5},
            lengths=(3,),
            options={"eps": 1.0},
        ),
    ),
    planted=Edit(
        module="kernels.norm.l2norm",
        before="1.0 / tl.sqrt(tl.sum(x * x, 1) + eps)",
        after="1.0 / (tl.sqrt(tl.sum(x * x, 1)) + eps)",
    ),
)
