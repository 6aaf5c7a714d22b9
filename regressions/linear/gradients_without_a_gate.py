"""A branch for gates without one for no gates."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage in dk and dbeta where there is no gate.",
    cause="What belongs into the else of USE_G was not there.",
    source="flash-linear-attention 23da0a15 (863), issue 862, prepare_wy_repr_bwd",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="        dk += product(tl.trans(dA), q, DTYPE)\n",
        after="",
    ),
)
