"""V loaded with the parameters of K."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A Hopper kernel did not compile: the pipeline of V was built from the parameters of "
    "K. Where both have one head dim and one layout, nobody notices.",
    cause="One name copied for the other; K and V were never drawn apart.",
    source="flash-attention, Hopper forward kernel (report of a user)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 2, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], pairs, steps,\n            SINK",
        after="*q.stride()[:3], *k.stride()[:3], *k.stride()[:3], pairs, steps,\n            SINK",
    ),
)
