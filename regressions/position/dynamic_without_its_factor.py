"""The factor of dynamic NTK scaling."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Dynamic NTK scaling was the same for every factor.",
    cause="The base grew with the length alone; the factor of the configuration was not used.",
    source="mlx-lm 1545 (one of four defects)",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[dynamic]"
    ),
    planted=Edit(
        module="kernels.position.tables",
        before="factor=1 + factor * past /",
        after="factor=1 + past /",
    ),
)
