"""A reset that forgets the tokens and not which were dropped."""

from properties.mutants.edit import Edit
from properties.mutants.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Generating twice with one sliding-window cache: the second time goes wrong.",
    cause="reset left part of the state of the window as it was.",
    source="transformers 31917",
    pinned=TestAt(
        "properties/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.sliding",
        before=("        super().reset()\n        self._first = [0] * self.batch"),
        after="        super().reset()",
    ),
)
