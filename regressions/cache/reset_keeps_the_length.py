"""A reset that forgets the tokens only."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="After a reset and 3 new tokens the cache was 9 tokens long.",
    cause="reset filled the storage with zeros and kept the length.",
    source="transformers 48509 (DynamicCache)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[ContiguousMachine]"
    ),
    planted=Edit(
        module="kernels.cache.kv",
        before=("        self._length = [0] * self.batch\n\n    @abstractmethod"),
        after=("        self.k_pages.zero_()\n        self.v_pages.zero_()\n\n    @abstractmethod"),
    ),
)
