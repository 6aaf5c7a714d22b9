"""States between chunks in float16."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in training: a state of large values overflows, and loses positive definiteness.",
    cause="The states were stored in the dtype of the inputs.",
    source="flash-linear-attention 1152, issue 1187, mesa_net",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float16",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(40,),
            options={"scale": None, "normalize": False, "output_final_state": True},
            values="large_states",
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="dtype = workspace_dtype(rows.dtype)",
        after="dtype = rows.dtype",
    ),
)
