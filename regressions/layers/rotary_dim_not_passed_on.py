"""A partial rotation that the module turns into a whole one."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A configuration with partial_rotary_factor = 0.5 gave a model that rotates whole "
    "heads.",
    cause="The module looked for another name, and fell back on head_dim.",
    source="vLLM 43770",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="                self.rotary_dim,\n",
        after="                self.head_dim,\n",
    ),
)
