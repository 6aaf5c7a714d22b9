"""A gradient of the scores that sums over one tile of V."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients where V is more than one tile.",
    cause="delta was summed over all of V, dP over one tile.",
    source="flash-linear-attention e4c7f880 (941) and cff34514 (1042), backward pass of wall_attn",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 33},
            lengths=(3,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="dA += product(do, tl.trans(v), DTYPE, FINE_A=True)",
        after="dA = product(do, tl.trans(v), DTYPE, FINE_A=True)",
    ),
)
