"""The gradient of y, addressed as if it were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong dx, dweight and gradient of the initial state where y is split off a fused "
    "projection.",
    cause="Strides (D, 1) written out for dy.",
    source="flash-linear-attention 71ebc498 (871)",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "D": 3, "W": 4},
            lengths=(5,),
            given=("initial_state",),
            options={"activation": None, "output_final_state": True},
            layout="heads_first",
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)",
        after="dy, dfinal = *contiguous(x, weight, bias, initial_state), d0, d1",
    ),
)
