"""A loader that rounds its share down."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Rows of the last, partial wave were read through a page number that nobody had "
    "loaded.",
    cause="Entries per thread were block length // threads, rounded down.",
    source="flash-attention 2745 (69e1bcbe)",
    pinned=TestAt(
        "properties/suite/test_caches.py::"
        "test_chunks_longer_than_a_tile_match_the_list_of_tokens[paged-(3, 5)]"
    ),
    planted=Edit(
        module="kernels.cache.pages",
        before='per_sequence = cdiv(longest, blocks["BLOCK_T"])',
        after='per_sequence = max(1, longest // blocks["BLOCK_T"])',
    ),
)
