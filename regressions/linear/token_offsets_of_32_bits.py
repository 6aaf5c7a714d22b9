"""The offset of a token, in 32 bits."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silent corruption, then an illegal memory access, once a tensor has more than 2^31 "
    "elements.",
    cause="int32 offsets in about a hundred kernels; some were cast after the product.",
    source="flash-linear-attention 31d15f75 (1082), abfa403d (911), f0e213db (964), f0394d2e "
    "(965), 854c4ce9 (692) and 7a882c3c (733); mamba 1015",
    pinned=TestAt(
        "properties/suite/test_far_addresses.py::"
        "test_offsets_are_64_bits_wide[gla-fused_recurrent-tokens]"
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="(length - 1 - step if REVERSE else step).to(tl.int64)",
        after="length - 1 - step if REVERSE else step",
    ),
)
