"""A first call of one token."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The state was not written by a first call of one token per sequence and without a "
    "cache before it.",
    cause="An early return for single tokens stood before the store of the final state.",
    source="flash-linear-attention, pull requests 1194 and 1246 (token_shift)",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::test_a_prompt_and_then_token_by_token_is_one_pass[1-auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before="cache.update(state, layer=self.layer_idx, offset=offset)",
        after="if tokens > 1 or cache.state(self.layer_idx) is not None:\n"
        "                cache.update(state, layer=self.layer_idx, offset=offset)",
    ),
)
