"""A mean length of no sequences."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="ZeroDivisionError for a batch of 0, as padding for CUDA graphs has it; SIGFPE for no "
    "keys.",
    cause="A heuristic divides by the amount of work: num_splits by the number of blocks, a "
    "swizzle by the size of a head.",
    source="flash-attention 2503 and 2515 (commit 484b9813), 2470 (commit 03cd0651) and commit "
    "74dfa43c",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 0, "H": 1, "K": 5, "V": 3},
            lengths=(4,),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.recurrence",
        before='tokens=sizes["B"] * sizes["T"],\n        sequences=sequences,',
        after='tokens=sizes["B"] * sizes["T"] // sequences,\n        sequences=1,',
    ),
)
