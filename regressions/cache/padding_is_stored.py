"""Padding tokens that are stored."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in the outputs of real tokens, in small paged caches.",
    cause="Padding tokens were written, all to the same slot, from where real tokens read them.",
    source="transformers 46765",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.kv",
        before=("        length, counts, _ = update.on_device\n        pages.append("),
        after=(
            "        length, counts, _ = update.on_device\n"
            "        counts = torch.full_like(counts, update.k.shape[1])\n"
            "        pages.append("
        ),
    ),
)
