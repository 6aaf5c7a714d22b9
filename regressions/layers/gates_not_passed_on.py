"""A gated layer without its gates."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A simple GLA layer that failed, or ran without gates.",
    cause="Its decays were passed as gk=, the argument of another op, instead of g=.",
    source="flash-linear-attention 797bf72f, pull request 560",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::test_the_layer_is_its_formula[options0-auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before=("            v,\n            g,\n"),
        after=("            v,\n            None,\n"),
    ),
)
