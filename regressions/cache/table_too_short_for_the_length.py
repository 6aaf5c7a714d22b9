"""Fewer pages than the length asks for."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silent corruption: the table of pages was read past its end.",
    cause="Nothing compared the lengths with the pages of the table.",
    source="flash-attention 2709, pull request 2711 (77aacb68)",
    pinned=TestAt("properties/suite/test_caches.py::test_wrong_pages_are_refused"),
    planted=Edit(
        module="kernels.cache.paged",
        before='if tokens > len(held) * sizes["page_size"]:',
        after='if tokens > sizes["P"] * sizes["page_size"]:',
    ),
)
