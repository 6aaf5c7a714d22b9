"""Head dims below 16."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A GLA layer with expand_k=0.5 and heads of 16 has keys of 8: an AssertionError from "
    "Triton's compiler.",
    cause="tl.dot wants at least 16 rows and columns; the tile was as narrow as the head.",
    source="flash-linear-attention (report of a user)",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="bfloat16",
            dims={"B": 1, "H": 2, "K": 8, "V": 16},
            lengths=(21,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.tiles",
        before="return max(least, _width(key_dim, widest)), "
        "max(least, _width(value_dim, tile.features))",
        after="return min(next_power_of_2(key_dim), widest), "
        "min(next_power_of_2(value_dim), tile.features)",
    ),
)
