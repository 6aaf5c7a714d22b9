"""Tables as long as the new tokens, not as the sequence."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Packed sequences that go on from a cache: an assertion, or tables that are too "
    "short.",
    cause="The length to make tables for was that of the queries alone.",
    source="flash-linear-attention f08e57cf, pull request 516",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="return tokens + int(where.max()) if",
        after="return max(tokens, int(where.max())) if",
    ),
)
