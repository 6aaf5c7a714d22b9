"""A softcap in the forward pass, and none in the backward pass."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN gradients while training Gemma 2.",
    cause="The forward pass took a softcap, the backward pass did not have its derivative, and "
    "nothing refused it.",
    source="flash-attention 1065",
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
                "softcap": 2.0,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="return 4.0 * e / ((1.0 + e) * (1.0 + e))",
        after="return 1.0 + 0.0 * e",
    ),
)
