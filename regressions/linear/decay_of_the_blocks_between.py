"""Decays of the all-pairs form that stop at the end of a block."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong dk and dg in the parallel form of simple GLA for sequences of more than one "
    "block; here o.",
    cause="The decays of a block were taken relative to another place than those of the blocks "
    "it meets.",
    source="flash-linear-attention 9d148e32, a226c0c9 and 0a83fd3f, parallel_simple_gla",
    pinned=LawAbout(
        "differential",
        Case(
            op="simple_gla",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(37,),
            given=("g",),
            options={"scale": None, "output_final_state": True},
            tile=1,
        ),
    ),
    planted=Edit(
        module="kernels.linear.parallel",
        before="A *= (head_decay(1, g, DTYPE) * passed)[None, :]\n",
        after="A *= head_decay(1, g, DTYPE)[None, :]\n",
    ),
)
