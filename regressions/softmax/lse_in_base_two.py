"""An lse in base 2."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="12 % of error from the merge of two parts; the newest tokens get a fifth of their "
    "weight.",
    cause="One backend returns log2, the kernel that merges expects the natural logarithm.",
    source="SGLang 35045 and 40903",
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
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.forward",
        before="(peak + tl.log2(total)) * LN2",
        after="peak + tl.log2(total)",
    ),
)
