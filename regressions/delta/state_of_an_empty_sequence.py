"""The final state of a sequence without tokens."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="It is uninitialised; it should be the initial state.",
    cause="if T == 0: return, before the final state is stored.",
    source="flash-linear-attention, fused_recurrent of KDA, before 0.6.0",
    pinned=LawAbout(
        "written_outputs",
        Case(
            op="kda",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(3, 0, 2),
            packed=True,
            given=("initial_state",),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.fused_recurrent",
        before=("    for t in range(length):\n        row ="),
        after=("    if length == 0:\n        return\n    for t in range(length):\n        row ="),
    ),
)
