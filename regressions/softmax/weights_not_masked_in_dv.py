"""Weights of hidden pairs in dv."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN gradients of packed sequences, and of tails without a causal mask.",
    cause="p = exp(qk - m) was not masked again in the inner loop of the backward pass.",
    source="flash-attention 1947; aiter 3551",
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
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="p = tl.where(visible, p, 0.0)\n",
        after="p = p * 1.0\n",
    ),
)
