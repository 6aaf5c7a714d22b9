"""V masked by the head dim of K."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong outputs where the head dim of V is not that of Q and K.",
    cause="The predicate of V compared with params.d instead of params.dv.",
    source="flash-attention, commits 6d199aa2, e3b2400a and 9e07d6d3",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 3, "V": 5},
            lengths=(7,),
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
        module="kernels.softmax.forward",
        before="columns, high, in_v, FULL_V",
        after="columns, high, tl.arange(0, PAD_V) < key_dim, FULL_V",
    ),
)
