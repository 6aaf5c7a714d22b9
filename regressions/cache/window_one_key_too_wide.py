"""A window that attention counts otherwise than the cache."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A sliding window of W let each query attend to W + 1 keys.",
    cause="W was passed on to an attention whose bounds include the key W back.",
    source="transformers 39408",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.sliding",
        before='return options | {"window": self.window}',
        after='return options | {"window": self.window + 1}',
    ),
)
