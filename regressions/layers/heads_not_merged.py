"""Heads that are not merged before the output projection."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Linear attention layers raised a shape error whatever they were given.",
    cause="The heads were not merged, or cut at the wrong place.",
    source="flash-linear-attention fa1ced13 (pull request 243), 2de145f1",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::test_the_layer_is_its_formula[options0-auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before="o = self.norm(o).flatten(2)",
        after="o = self.norm(o)",
    ),
)
