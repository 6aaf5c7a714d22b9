"""An oracle whose ALiBi counts from the first key."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The reference of ALiBi with a left-padded cache was wrong, not the kernel.",
    cause="Its bias used the column, not the column less the padding.",
    source="flash-attention, commit 29956362",
    pinned=TestAt(
        "reference/softmax/test_attention.py::"
        "test_alibi_halves_a_weight_per_token_of_distance_by_hand[attention]"
    ),
    planted=Edit(
        module="reference.softmax.attention",
        before="slope[:, None, None] * (p - j).abs()",
        after="slope[:, None, None] * (i - j).abs()",
    ),
)
