"""An option that is stored and has no effect."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="FlashSelfAttention(deterministic=True) was not deterministic.",
    cause="The constructor stored the flag, and forward never passed it on.",
    source="flash-attention 746, pull request 748 (386e3911)",
    pinned=TestAt("properties/suite/test_layers.py::test_the_mode_of_a_layer_is_the_one_that_runs"),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before=("            mode=self.mode,\n        )"),
        after="        )",
    ),
)
