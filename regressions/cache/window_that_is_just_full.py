"""A window that holds just as many tokens as it can."""

from properties.mutants.edit import Edit
from properties.mutants.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong content as soon as prompt and generated tokens together reach the window.",
    cause="The update began to drop tokens one token late: when the window was exceeded, not when "
    "it was full.",
    source="transformers 37574",
    pinned=TestAt(
        "properties/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.sliding",
        before="return [max(0, length - (self.window - 1)) for length in self._length]",
        after=(
            "full = self.window\n"
            "        return [n - (full - 1) if n > full else 0 for n in self._length]"
        ),
    ),
)
