"""Gradients of the system that have no branch for rules without gates."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage in dk and dbeta of the gated delta rule where there is no gate.",
    cause="What belongs into the else of USE_G was not there.",
    source="flash-linear-attention 23da0a15 (863), issue 862, prepare_wy_repr_bwd",
    pinned=LawAbout(
        "differential",
        Case(
            op="gated_delta_rule",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.chunk",
        before="            dk = product(tl.trans(dA), e, DTYPE, acc=dk)\n",
        after="",
    ),
)
