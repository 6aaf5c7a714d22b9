"""The offset of a packed sequence, in 32 bits."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Illegal memory access, or a wrong dq, for many or long sequences.",
    cause="The row offset of a sequence was an int32 product.",
    source="flash-attention 1500 (6865e601) and 2260 (b62d93f3)",
    pinned=TestAt(
        "properties/suite/test_far_addresses.py::"
        "test_offsets_are_64_bits_wide[attention-parallel-sequences]"
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="start = tl.load(cu_seqlens + n).to(tl.int64)",
        after="start = tl.load(cu_seqlens + n).to(tl.int32)",
    ),
)
