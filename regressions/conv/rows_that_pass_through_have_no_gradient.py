"""Rows of the initial state that are left in the final one."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A wrong gradient of the initial state where the final state has one and a sequence "
    "is shorter than the state, as chunks of one or two tokens are.",
    cause="The gradient of what passes from the initial state to the final one was dropped.",
    source="flash-linear-attention a252c17d (1141), issue 1140",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "D": 3, "W": 4},
            lengths=(2,),
            given=("initial_state",),
            options={"activation": None, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="kept = inside & (row >= left)",
        after="kept = inside & (row >= tl.maximum(left, W - 1))",
    ),
)
