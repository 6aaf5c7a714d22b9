"""The offset of a token, in 32 bits."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silent corruption, then an illegal memory access, for views of a fused projection.",
    cause="offs·stride in int32, where the stride from token to token is 3·H·D.",
    source="SageAttention 386",
    pinned=TestAt(
        "properties/suite/test_far_addresses.py::test_offsets_are_64_bits_wide[attention-parallel-tokens]"
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="tl.arange(0, rows.shape[0])[:, None].to(tl.int64) * stride",
        after="tl.arange(0, rows.shape[0])[:, None] * stride",
    ),
)
