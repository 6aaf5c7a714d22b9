"""The gradient of the final state, counted once per chunk."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients of long sequences whose final state gets one.",
    cause="Every split of the sequence started from dht, and their sum held it as often.",
    source="flash-linear-attention c3f16354, split-h",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(40,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="FINE_A=True, FINE_B=USE_G or DELTA, acc=s)",
        after="FINE_A=True, FINE_B=USE_G or DELTA, acc=s)\n"
        "                if REVERSE:\n"
        "                    s += load_rows(initial_ptr + state + part * part_size, keys, values, "
        "value_dim, initial_rows - skip, value_dim)",
    ),
)
