"""A reset that forgets the count only."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A cache that was reset went on from the state it had.",
    cause="The body of reset was empty.",
    source="flash-linear-attention 2e38c1fa, pull request 910",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[RecurrentMachine]"
    ),
    planted=Edit(
        module="kernels.cache.recurrent",
        before=(
            "        self._states = [None] * self.layers\n"
            "        self._length = [[0] * self.batch for _ in self._length]"
        ),
        after="        self._length = [[0] * self.batch for _ in self._length]",
    ),
)
