"""A length that is asked of the first layer."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Incoherent output once a hybrid cache held more tokens than its window.",
    cause="The number of tokens seen was that of layer 0, whatever the other layers had seen.",
    source="transformers 38156",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[RecurrentMachine]"
    ),
    planted=Edit(
        module="kernels.cache.recurrent",
        before="            if length != self._length[0]:\n",
        after="            if False:\n",
    ),
)
