"""A chunk that is longer than the window."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong keys in the window after a chunk of more tokens than it holds.",
    cause="New tokens were rolled into the window as if they were never more than it holds.",
    source="flash-linear-attention 2e38c1fa, pull request 910",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.pages",
        before="new = new & (t >= count - page_size)",
        after="new = new & (t < page_size)",
    ),
)
