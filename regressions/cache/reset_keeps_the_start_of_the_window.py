"""A reset that forgets the tokens and not which were dropped."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Generating twice with one sliding-window cache: the second time goes wrong.",
    cause="The position in the window was not cleared with the cache.",
    source="tvm 16132 (window_attention_current_pos); the same trigger in transformers 31917",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.sliding",
        before=("        super().reset()\n        self._first = [0] * self.batch"),
        after="        super().reset()",
    ),
)
