"""An oracle whose normaliser sums over heads."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The reference of normalised linear attention was wrong, not the kernel.",
    cause="The keys were summed along the axis of the heads instead of that of the tokens.",
    source="flash-linear-attention 12e2a700 (851), issue 850, naive_chunk_linear_attn",
    pinned=TestAt(
        "reference/linear/test_linear_attn.py::test_two_tokens_normalised_by_hand[linear_attn]"
    ),
    planted=Edit(
        module="reference.linear.normalize",
        before="_divide(o[..., :-1], o[..., -1:])",
        after='_divide(o[..., :-1], (arguments["q"] * arguments["k"].cumsum(2)).sum(-1, True))',
    ),
)
