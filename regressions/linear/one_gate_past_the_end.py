"""A gate past the end of the sequence."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Reads past the end of a sequence.",
    cause="> T where it should be >= T.",
    source="flash-linear-attention be882f3b (527), GSA",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5, 7),
            packed=True,
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.primitives.decay",
        before="(rows[:, None] < num_rows) & (cols[None, :] < num_cols)\n    g =",
        after="(rows[:, None] <= num_rows) & (cols[None, :] < num_cols)\n    g =",
    ),
)
