"""Decays of pairs in the wrong order, computed and then masked."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN gradients of x and dt in the first iteration of Mamba 2; a chunk size of 1 is "
    "clean.",
    cause="The exponential of prefix sums less prefix sums was taken for all pairs: for a key "
    "behind the query it is infinite, and the mask came after.",
    source="mamba 352, 353, 354 and 558 (as users found it)",
    pinned=LawAbout(
        "differential",
        Case(
            op="mamba2",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(21,),
            options={"output_final_state": True},
            values="extreme_gates",
            seed=3,
        ),
    ),
    planted=Edit(
        module="kernels.primitives.decay",
        before="tl.where(chunk_span(side, C), between, 0).to(tl.float32)",
        after="between.to(tl.float32)",
    ),
)
