"""The update of the state, moved into the branch of the gate."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Without a gate the values never reach the state of the gated delta rule.",
    cause="A refactoring moved the update into the branches of g and gk: none where there is no "
    "gate, two where there are both.",
    source="flash-linear-attention f636f5a1, introduced by d1fc1c54",
    pinned=LawAbout(
        "differential",
        Case(
            op="gated_delta_rule",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.fused_recurrent",
        before="        S = decayed + k[:, None] * u[None, :]\n",
        after=(
            "        S = decayed\n"
            "        if USE_G or USE_HEAD_G:\n"
            "            S += k[:, None] * u[None, :]\n"
        ),
    ),
)
