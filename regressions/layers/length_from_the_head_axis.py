"""The length of a sequence read from the axis of the heads."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Tables that depend on the length were made for a wrong one.",
    cause="The sequence length was read from the axis of the heads.",
    source="mlx-lm 1545 (one of four defects)",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="max(each.shape[1] for each in x)",
        after="max(each.shape[2] for each in x)",
    ),
)
