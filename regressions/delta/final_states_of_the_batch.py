"""Room for one final state per batch row, not per packed sequence."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The final state of packed sequences too small, and heap corruption.",
    cause="new_empty(B, ...) where it should be N.",
    source="flash-linear-attention, fused_recurrent of the IPLR delta rule, before 0.6.0",
    pinned=LawAbout(
        "differential",
        Case(
            op="dplr",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(3, 2),
            packed=True,
            options={"scale": None, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.fused_recurrent",
        before="final_state = v.new_empty(sequences,",
        after="final_state = v.new_empty(batch,",
    ),
)
