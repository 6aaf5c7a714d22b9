"""A window that is cut before the chunk has attended."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Chunked prefill with a sliding window: the first queries of each chunk miss keys.",
    cause="Keys came from the window after it had been cut to the newest tokens, which the first "
    "queries of the chunk still needed.",
    source="flash-linear-attention 0.6.0 (layers/attn, rodimus)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[SlidingMachine]"
    ),
    planted=Edit(
        module="kernels.cache.kv",
        before=(
            "        view = self._view(update)\n        self._write(update)\n        return view"
        ),
        after=("        self._write(update)\n        return self._view(update)"),
    ),
)
