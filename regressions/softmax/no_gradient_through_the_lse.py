"""A gradient that comes in through the lse, left out."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Gradients of q, k and the sink wrong for a loss that reads the lse as well.",
    cause="delta is Σ do·o - dlse; the second term was forgotten.",
    source="flash-attention 2706 (review)",
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
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="tl.sum(o_tile * do_tile, 1) - from_lse",
        after="tl.sum(o_tile * do_tile, 1)",
    ),
)
