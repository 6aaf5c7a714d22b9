"""The update of the state, moved into the branch of the gate."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Without a gate the values never reach the state.",
    cause="A refactoring moved the update into the branches of g and gk: none where there is no "
    "gate, two where there are both.",
    source="flash-linear-attention f636f5a1, introduced by d1fc1c54",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={
                "scale": None,
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="S += k[:, None] * v[None, :]\n        o =",
        after="if USE_G:\n            S += k[:, None] * v[None, :]\n        o =",
    ),
)
