"""A sink added to the denominator as it is."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A learnable sink gave a wrong normaliser.",
    cause="Implemented as e^x / (sink + Σ e^x) instead of e^x / (e^sink + Σ e^x).",
    source="flash-attention, commit e81c237e",
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
        module="kernels.softmax.forward",
        before='tl.where(sink_logit == float("-inf"), 0.0, 1.0)',
        after="sink_logit * LN2 * tl.exp2(-sink_logit)",
    ),
)
