"""The gates of head 0, for every head."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="All heads decay by the gates of head 0 in context-parallel KDA.",
    cause="The offset of the head was missing from the address of the gates.",
    source="flash-linear-attention d38ed8b5 (781)",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(20,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="g_ptr += offset",
        after="g_ptr += offset - head * key_dim",
    ),
)
