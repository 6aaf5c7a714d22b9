"""The gradient of o, addressed as if it were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients where the incoming gradient is not contiguous.",
    cause="The kernel computed the addresses of do from its shape.",
    source="flash-attention, commit 88c4e5db",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 2, "G": 1, "R": 2, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            layout="heads_first",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="*do.stride()[:3], pairs, steps)",
        after="*o.stride()[:3], pairs, steps)",
    ),
)
