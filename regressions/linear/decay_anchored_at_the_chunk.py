"""Decays within a block, measured from the start of the chunk."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong dk and dg for sequences of more than one block.",
    cause="The decays of a block were taken relative to its chunk.",
    source="flash-linear-attention 9d148e32, a226c0c9 and 0a83fd3f, parallel_simple_gla",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(7,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.primitives.decay",
        before="tl.where(query, half, r + 1)",
        after="tl.where(query, 0, r + 1)",
    ),
)
