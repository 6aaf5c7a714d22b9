"""One length, expanded to the number of pages."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A paged cache given one length for all sequences had wrong lengths.",
    cause="The number was expanded to k_cache.shape[0], which in a paged cache is the number of "
    "pages.",
    source="flash-attention 1795 (cd9383f3)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[PagedMachine]"
    ),
    planted=Edit(
        module="kernels.cache.kv",
        before='counts = token_counts("offset", tokens if offset is None else offset, self.batch)',
        after=(
            "batch = self.batch if isinstance(offset, Tensor) else len(self.k_pages)\n"
            '        counts = token_counts("offset", tokens if offset is None else offset, batch)'
        ),
    ),
)
