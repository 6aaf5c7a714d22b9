"""A row of which no split has a key."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in o and LSE of a sequence without keys once its splits are combined.",
    cause="The maximum over all splits is -inf, and -inf - -inf is NaN.",
    source="flash-attention, commit 26d7d92f",
    pinned=LawAbout(
        "differential",
        Case(
            op="paged_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4},
            lengths=(1,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "num_splits": 3,
                "return_lse": True,
            },
            seed=22,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.paged_forward",
        before='base = tl.where(new_peak == float("-inf"), 0.0, new_peak)\n'
        "        decay = tl.exp2(peak - base)\n        weight",
        after="base = new_peak\n        decay = tl.exp2(peak - base)\n        weight",
    ),
)
