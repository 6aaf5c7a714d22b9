"""Two cascades without a key, merged by their LSEs."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in o and LSE when both states that are merged are empty.",
    cause="exp2(lse_a - max) is exp2(-inf - -inf).",
    source="flashinfer 4051, 5262",
    pinned=LawAbout(
        "differential",
        Case(
            op="merge_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 3, "V": 5},
            lengths=(7,),
            options={"base2": False},
            values="empty_rows",
            seed=0,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.merge",
        before='top = tl.where(top == float("-inf"), 0.0, top)',
        after="top = top",
    ),
)
