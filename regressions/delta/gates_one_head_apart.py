"""Gates of the next head, taken for those of the next token."""

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
            op="dplr",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(5,),
            given=("gk",),
            options={"scale": None, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="load_gates(g_ptr, rows, keys, stride, left, key_dim)",
        after="load_gates(g_ptr, rows, keys, key_dim, left, key_dim)",
    ),
)
