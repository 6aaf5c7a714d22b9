"""The mscales of a YaRN scaling."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="With a factor of 16, mscale = 1 and mscale_all_dim = 1, cosines and sines were too "
    "large by 27 %.",
    cause="The attention factor was computed from the factor alone; mscale and mscale_all_dim were "
    "read and dropped.",
    source="vLLM 48621, pull request 48623",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[yarn]"
    ),
    planted=Edit(
        module="kernels.position.tables",
        before="(mscale * octaves + 1) / (mscale_all_dim * octaves + 1)",
        after="octaves + 1",
    ),
)
