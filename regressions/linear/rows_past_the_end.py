"""Rows past the end of the sequence."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Reads out of bounds where T is not a multiple of the chunk.",
    cause="The loop ran to the end of the chunk, whatever the length of the sequence.",
    source="flash-linear-attention bb1f9b9c (673) and 370fe304, KDA",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5, 7),
            packed=True,
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.primitives.rows",
        before="(rows[:, None] < num_rows) & (cols[None, :] < num_cols)\n    return",
        after="(rows[:, None] >= 0) & (cols[None, :] < num_cols)\n    return",
    ),
)
