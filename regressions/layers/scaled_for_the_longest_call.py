"""Dynamic NTK scaling after a longer call."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="With dynamic NTK scaling a sequence past the original length had other rotations "
    "after a longer one than before it.",
    cause="Tables were made anew for more tokens than ever before, and not for fewer.",
    source="transformers 5.24, `dynamic_remembers` of its ledger here",
    pinned=TestAt(
        "kernels/layers/test_rotary_embedding.py"
        "::test_a_scaling_follows_the_tokens_so_far_and_nothing_else[scaling0]"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="tokens == self._tokens",
        after="tokens <= self._tokens",
    ),
)
