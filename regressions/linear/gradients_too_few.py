"""A backward function that returns too few gradients."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="RuntimeError: an incorrect number of gradients, 16 against 14.",
    cause="The forward function had got new arguments, and what the backward function returns had "
    "not.",
    source="mamba 431",
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
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.differentiable",
        before="return *wanted, *(None for _ in settings)",
        after="return tuple(wanted)",
    ),
)
