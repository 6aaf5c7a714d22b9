"""A sink that gets no gradient."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A learnable sink did not learn: its gradient was missing.",
    cause="The backward pass knew nothing of the sink.",
    source="flash-attention 1973 and 2102, fixed by 2706",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 3, "K": 5, "V": 3},
            lengths=(7,),
            given=("sink",),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="None if sink is None else dsink",
        after="None",
    ),
)
