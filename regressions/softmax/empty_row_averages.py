"""A row that sees no key, and averages all values."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A row whose mask is all finfo.min is the mean of V on one device and NaN on another; "
    "the next layer spreads it.",
    cause="Masked logits are a finite number: where there is nothing else, the softmax is uniform.",
    source="PyTorch 109517 and 110213",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            key_lengths=(3,),
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
        module="kernels.softmax.forward",
        before="p = tl.where(visible, p, 0.0)",
        after='p = tl.where(visible, p, tl.where(new_peak == float("-inf"), 1.0, 0.0)[:, None])',
    ),
)
