"""A window that holds just as many tokens as it can."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong content as soon as prompt and generated tokens together reach the window.",
    cause="The update that just fills the window dropped a token, where only the one after it has "
    "to.",
    source="transformers 37574",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.sliding",
        before="max(0, length - (self.window - 1))",
        after="max(0, length - (self.window - 1), length == self.window - 1)",
    ),
)
