"""Inputs addressed as if they were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong values for an x that is not contiguous.",
    cause="The function that launches the forward kernel had no guard that copies its inputs.",
    source="flash-linear-attention f5347537 (627)",
    pinned=LawAbout(
        "differential",
        Case(
            op="short_conv",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "D": 3, "W": 4},
            lengths=(5,),
            options={"activation": None, "output_final_state": True},
            layout="sliced",
        ),
    ),
    planted=Edit(
        module="kernels.conv.short_conv",
        before="x, weight, bias, initial_state = contiguous(x, weight, bias, initial_state)",
        after="weight, bias, initial_state = contiguous(weight, bias, initial_state)",
    ),
)
