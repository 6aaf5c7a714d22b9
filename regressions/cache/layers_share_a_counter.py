"""One count of tokens, advanced by the first layer."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Cached decoding with two attention layers or more: rotary positions off by one in "
    "all layers but the first.",
    cause="One counter for all layers was advanced by layer 0, before the layers after it had "
    "asked for their position.",
    source="flash-linear-attention decd1978 (pull request 748, issues 747, 766), 729751c6 (pull "
    "request 478)",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[RecurrentMachine]"
    ),
    planted=Edit(
        module="kernels.cache.recurrent",
        before="return torch.tensor(self._length[layer], ",
        after="return torch.tensor(self._length[0], ",
    ),
)
