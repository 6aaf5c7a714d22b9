"""A row whose weights sum to 0."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN where all features of a query or of all keys are 0, as relu can make them.",
    cause="x / x.sum() without a guard.",
    source="flash-linear-attention, sum_norm of DeltaNet, before 0.6.0",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={
                "scale": None,
                "normalize": True,
                "output_final_state": True,
                "reverse": False,
            },
            values="zeros",
            seed=2,
        ),
    ),
    planted=Edit(
        module="kernels.linear.normalize",
        before="torch.where(empty, 1.0, weights)",
        after="weights",
    ),
)
