"""The rest of the last page."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN from a paged cache whose memory had been used before.",
    cause="Rows past the length were read as well: their weight is 0, but 0 times NaN is NaN.",
    source="vLLM 641, pull request 936",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[PagedMachine]"
    ),
    planted=Edit(
        module="kernels.cache.pages",
        before="stored = inside & (position < old_length)",
        after="stored = inside & (position < tl.cdiv(old_length, page_size) * page_size)",
    ),
)
