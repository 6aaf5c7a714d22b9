"""Pairs of neighbours taken for halves."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Position-dependent garbage, in long outputs only.",
    cause="The module turned pairs of neighbours where the weights were made for halves.",
    source="TensorRT-LLM 16378 (second defect)",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="                interleaved=self.interleaved,\n",
        after="",
    ),
)
