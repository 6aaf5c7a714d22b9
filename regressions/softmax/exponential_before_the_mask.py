"""Hidden pairs, multiplied by 0 after the exponential."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN gradients in the first iteration of training in bfloat16.",
    cause="exp of differences of cumulative sums that are positive above the diagonal overflows "
    "before the mask is applied: Inf·0 is NaN.",
    source="mamba 352, 353, 354 and 558 (as users found it)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(17,),
            given=("g",),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            values="extreme_gates",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="p = tl.where(visible, p, 0.0)",
        after="p *= visible.to(tl.float32)",
    ),
)
