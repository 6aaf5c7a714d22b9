"""An option that is stored and has no effect."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="FlashSelfAttention(deterministic=True) was not deterministic.",
    cause="The constructor stored the flag, and forward never passed it on.",
    source="flash-attention 746, pull request 748 (386e3911)",
    pinned=TestAt("properties/suite/test_layers.py::test_a_layer_runs_the_kernels_of_its_mode"),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before=("            mode=self.mode,\n        )"),
        after="        )",
    ),
)
