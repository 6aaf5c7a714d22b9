"""Sums of later gates as the total less the sum of the earlier ones."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Suffix sums lose all digits behind one large gate early in the chunk.",
    cause="The reverse cumsum was computed as total - prefix + x, which cancels.",
    source="flash-linear-attention 3e432dec (1095)",
    pinned=TestAt(
        "kernels/linear/test_recurrence.py::"
        "test_small_gates_behind_large_ones_keep_their_digits[gla-chunk]"
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="to_end = decay(chunk_span(1, C), g, DTYPE)",
        after="to_end = tl.exp(tl.sum(g, 0) - tl.cumsum(g, 0))",
    ),
)
