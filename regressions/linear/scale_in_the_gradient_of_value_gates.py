"""The gradient of value gates, scaled once too often."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong dgv.",
    cause="It was computed from the scaled output, of which each program has only its part.",
    source="flash-linear-attention 17d1bc4e (486)",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            given=("gv",),
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
        before="dgv = tl.sum(before * D, axis=0)",
        after="dgv = tl.sum(before * D, axis=0) * scale",
    ),
)
