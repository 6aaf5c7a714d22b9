"""A large sink that is not part of the running maximum."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="lse infinite for a sink of 100, NaN for a row without keys.",
    cause="exp(sink - maximum) with a maximum over the keys alone.",
    source="flash-attention 2752 (review thread)",
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
            values="large_logits",
            seed=5,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.forward",
        before=' + sink_logit\n        total += tl.where(sink_logit == float("-inf"), 0.0, 1.0)',
        after="\n        total += tl.exp2(sink_logit)",
    ),
)
