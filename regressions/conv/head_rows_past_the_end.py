"""Rows of the head of a sequence that is shorter than its head."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients with an initial state where T < W: there it was dweight, here that "
    "of the state.",
    cause="The mask of the rows that see the initial state lacked o_t < T.",
    source="flash-linear-attention 7cbe461b (774)",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "D": 3, "W": 4},
            lengths=(1,),
            given=("initial_state",),
            options={"activation": None, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="inside = (cols < dim) & (row + n < left)\n",
        after="inside = cols < dim\n",
    ),
)
