"""An initial state that skips the decay of the first chunk."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A prefill in chunks differs from one in full.",
    cause="Decays were taken from the start of the chunk instead of the start of the sequence, and "
    "that of the initial state with them.",
    source="vLLM 21783 and 23279, Mamba 2",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(20,),
            given=("g", "initial_state"),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="s *= passed",
        after="s *= tl.where(step == 0, 1.0, passed)",
    ),
)
