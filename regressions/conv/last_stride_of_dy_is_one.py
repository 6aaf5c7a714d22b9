"""The gradient of y, taken to be dense in its last dim."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A wrong gradient of the initial state with an activation, for strided and for "
    "expanded gradients, as y.sum().backward() makes them.",
    cause="The stride of the last dim of dy was taken to be 1, and y was addressed with the "
    "strides of dy.",
    source="flash-linear-attention 6d80721f (1139), issue 1138, compute_dh0",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "D": 3, "W": 4},
            lengths=(5,),
            given=("initial_state",),
            options={"activation": "silu", "output_final_state": True},
            layout="strided",
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="initial_state, dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)",
        after=(
            "initial_state, dy, dfinal = contiguous(\n"
            "        x, weight, bias, initial_state,\n"
            "        d0.as_strided(d0.shape, (*d0.stride()[:2], 1)), d1,\n"
            "    )"
        ),
    ),
)
