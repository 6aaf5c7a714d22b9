"""An empty sequence whose final state nobody writes."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The final state of a sequence without tokens is uninitialised; it should be the "
    "initial state.",
    cause="if T == 0: return, before the final state is stored.",
    source="flash-linear-attention, fused_recurrent of KDA, before 0.6.0",
    pinned=LawAbout(
        "written_outputs",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(3, 0, 2),
            packed=True,
            given=("initial_state",),
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
        before="    for step in range(length):\n        t =",
        after="    if length == 0:\n        return\n    for step in range(length):\n        t =",
    ),
)
