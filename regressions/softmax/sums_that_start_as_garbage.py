"""Room that is summed into, or read where nobody has written, and was not zeroed."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage in padded rows and in states, once calls are captured in a CUDA graph.",
    cause="empty where it should be zeros.",
    source="flash-linear-attention 80e69a56",
    pinned=LawAbout(
        "written_outputs",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(70,),
            given=("g",),
            options={
                "scale": None,
                "causal": True,
                "window": 3,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="row_sums = terms.new_zeros(",
        after="row_sums = terms.new_empty(",
    ),
)
