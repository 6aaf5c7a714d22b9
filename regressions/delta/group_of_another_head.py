"""Gradients of shared keys, added up over the wrong heads."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients where there are fewer heads of keys than heads.",
    cause="The backward pass took the head from a number of heads that was not the one meant.",
    source="flash-linear-attention 7c730eb5, chunk_bwd_dh",
    pinned=LawAbout(
        "differential",
        Case(
            op="gated_delta_rule",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "G": 2, "R": 2, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.primitives.groups",
        before="dx.unflatten(2, (groups, -1)).sum(3)",
        after="dx.unflatten(2, (-1, groups)).sum(2)",
    ),
)
