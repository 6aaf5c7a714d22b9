"""Pages past 2^31 elements."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Appends to one sequence landed in another; paged prefill returned zeros; crashes. "
    "In large caches only.",
    cause="The index of a page or a sequence was multiplied by its stride in 32 bits.",
    source="flash-attention 772; flashinfer 3130, 3136; aiter 2517; vLLM 50427, 50483 (PyTorch "
    "185264)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_pages_of_any_size_are_addressed_in_64_bits"
    ),
    planted=Edit(
        module="kernels.cache.pages",
        before="page = tl.load(table + block, mask=mask).to(tl.int64)",
        after="page = tl.load(table + block, mask=mask)",
    ),
)
