"""Beam search that reorders half of a cache."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Beams crossed: a sequence went on with the tokens of another.",
    cause="reorder, crop and select changed one of the two stores of a cache and left the other.",
    source="transformers 45510, 48700 (QuantizedCache)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[ContiguousMachine]"
    ),
    planted=Edit(
        module="kernels.cache.kv",
        before="self.k_pages, self.v_pages = self.k_pages[index], self.v_pages[index]",
        after="self.k_pages, self.v_pages = self.k_pages[index], self.v_pages[: len(indices)]",
    ),
)
