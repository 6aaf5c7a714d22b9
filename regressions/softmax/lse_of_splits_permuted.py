"""The LSE of grouped heads after splits are combined."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The LSE came back permuted for grouped heads with several splits.",
    cause="The combining kernel wrote it in another layout than the rest expected.",
    source="vLLM's flash-attention 87",
    pinned=LawAbout(
        "differential",
        Case(
            op="paged_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4},
            lengths=(3,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "num_splits": 2,
                "return_lse": True,
            },
            seed=3,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.paged_forward",
        before="to = (token // tokens * heads + head) * tokens + token % tokens",
        after="to = rows",
    ),
)
