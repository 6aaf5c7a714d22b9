"""Angles in the precision of the model."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Far positions turned by angles that are wrong by up to a radian; 15962 was 15936 in "
    "bfloat16.",
    cause="Positions and frequencies, and with them their product, were in the low precision of "
    "the model: bfloat16 has no odd number above 256.",
    source="transformers 25681, 29285, 29496; gpt-neox 1003; candle 3520",
    pinned=TestAt(
        "properties/suite/test_rotary.py::test_tables_are_those_of_the_reference_rounded_once"
    ),
    planted=Edit(
        module="kernels.position.tables",
        before="angles = torch.outer(torch.arange(length, **exact), θ)",
        after="angles = torch.outer(torch.arange(length).to(device, dtype), θ.to(dtype))",
    ),
)
