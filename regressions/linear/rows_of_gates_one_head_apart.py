"""Gates addressed as if there were one head."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A stabiliser of the wrong row, and a risk of overflow, with more than one head.",
    cause="The stride from row to row was K instead of H·K.",
    source="flash-linear-attention 40334f1c (1085), DPLR with safe_gate",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(5,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="load_gates(g_ptr + key_rows, rows, keys, heads * key_dim",
        after="load_gates(g_ptr + key_rows, rows, keys, key_dim",
    ),
)
