"""A decay applied where there is no gate."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in dv without a gate, or an undefined name.",
    cause="The decay stood outside the branch of USE_G.",
    source="flash-linear-attention 6315d0ba (178)",
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
        before="**rows.flags(), USE_STATES",
        after='**(rows.flags() | {"USE_G": True}), USE_STATES',
    ),
)
