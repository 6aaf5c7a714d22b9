"""Two arguments of a device function, in the wrong order at one call."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong bounds of the keys on one path of the kernel.",
    cause="A new parameter was not threaded through one of the call sites, which shifted the rest.",
    source="flash-attention 1582 (commit 7ff73af4)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": True,
                "window": 3,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.forward",
        before="keys_of(first, last, shift, length_k, window,",
        after="keys_of(first, last, shift, window, length_k,",
    ),
)
