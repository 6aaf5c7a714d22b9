"""The gradient of a weight, summed over chunks of tokens in the dtype of the weight."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A noisy gradient of the weight where it is the sum of many chunks.",
    cause="It was accumulated in bfloat16.",
    source="flash-linear-attention 794f183c (874), in its fused linear losses",
    pinned=LawAbout(
        "exactness",
        Case(
            op="short_conv",
            mode="fused",
            dtype="bfloat16",
            dims={"B": 1, "D": 5, "W": 4},
            lengths=(80,),
            options={"activation": None, "output_final_state": True},
            tile=1,
            values="integers",
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="add_parts(dweight, weight.dtype)",
        after="sum(dweight.to(weight.dtype))",
    ),
)
