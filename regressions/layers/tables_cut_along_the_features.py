"""Tables cut to the length along the wrong dim."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Sequences shorter than the tables: wrong cosines and sines.",
    cause="cos[:, :seqlen] is a slice of the features; positions are dim 0.",
    source="flash-attention c7c66976 (rotary)",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="                *tables,\n",
        after="                *tables[:, :, :needed],\n",
    ),
)
