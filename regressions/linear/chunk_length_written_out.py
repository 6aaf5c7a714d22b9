"""A chunk length that the backward pass does not ask for."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients of KDA with any chunk_size but 64.",
    cause="BT = 64, written out in the backward pass.",
    source="flash-linear-attention 769035e9 (876) and 424b3330 (935)",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(37,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="C=tile.tokens, BK=BK, BV=BV, LEVELS=tile.tokens.bit_length() - 1,\n"
        "        **gate_flags(g), DELTA",
        after="C=32, BK=BK, BV=BV, LEVELS=5,\n        **gate_flags(g), DELTA",
    ),
)
