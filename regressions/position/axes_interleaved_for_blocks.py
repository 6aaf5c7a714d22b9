"""Which pairs an axis turns."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Half of the angles of a two-dimensional rotation were wrong.",
    cause="Pairs were turned by the axes in turn (y, x, y, x), where the model has a section of "
    "pairs for each axis.",
    source="vLLM-Omni 1784",
    pinned=TestAt("properties/suite/test_rotary.py::test_axes_are_those_of_the_reference"),
    planted=Edit(
        module="kernels.position.tables",
        before="    if interleaved:\n        turns",
        after="    if True:\n        turns",
    ),
)
