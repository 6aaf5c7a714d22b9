"""The first token of a packed sequence, in 32 bits."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Reads out of bounds of long packed batches.",
    cause="bos, the first token of a sequence, was an int32.",
    source="flash-linear-attention f3215680 (615), in its convolution",
    pinned=TestAt(
        "properties/suite/test_far_addresses.py::"
        "test_offsets_are_64_bits_wide[gla-fused_recurrent-sequences]"
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="start = tl.load(cu_seqlens_ptr + sequence).to(tl.int64)",
        after="start = tl.load(cu_seqlens_ptr + sequence).to(tl.int32)",
    ),
)
