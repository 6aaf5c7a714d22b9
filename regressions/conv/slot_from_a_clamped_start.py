"""The place of a token in a final state that it does not fill."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong dx where the final state has a gradient and a sequence is shorter than the "
    "state, as chunks of one or two tokens are.",
    cause="The row of the final state was counted from the first token that is kept, max(0, T - "
    "W + 1), and not from T - W + 1.",
    source="flash-linear-attention a252c17d (1141), issue 1140",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "D": 3, "W": 4},
            lengths=(2,),
            options={"activation": None, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="(state + row - left) * dim",
        after="(state + tl.maximum(row - tl.maximum(left, W - 1), 0)) * dim",
    ),
)
