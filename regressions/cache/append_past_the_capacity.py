"""Tokens appended to a cache that is full."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Tensors that had nothing to do with it were overwritten.",
    cause="Nothing compared the length after the update with the capacity, and the kernel wrote "
    "past the end.",
    source="flash-attention 638; nanotron 28",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[ContiguousMachine]"
    ),
    planted=Edit(
        module="kernels.cache.contiguous",
        before="if old + new > self.capacity:",
        after="if old > self.capacity:",
    ),
)
