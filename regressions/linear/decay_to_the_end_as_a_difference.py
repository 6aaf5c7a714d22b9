"""The decay from a token to the end of its chunk, as a difference."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Inf and then NaN in the states of Mamba 2 where |A| is large.",
    cause="cs_last - cs_k of the prefix sums of a chunk is above 0 by their rounding, and "
    "nothing took the lesser of it and 0.",
    source="vLLM 37501; mamba 713",
    pinned=TestAt(
        "kernels/linear/test_recurrence.py::"
        "test_small_gates_behind_large_ones_keep_their_digits[simple_gla-chunk]"
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="y *= head_decay(0 if REVERSE else 1, g, DTYPE)[:, None] * factor\n",
        after=(
            "P = tl.cumsum(g.to(tl.float32), 0)\n"
            "            to_end = tl.sum(g.to(tl.float32), 0) - P\n"
            "            y *= tl.exp(P if REVERSE else to_end)[:, None] * factor\n"
        ),
    ),
)
