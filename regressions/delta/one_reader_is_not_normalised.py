"""Normalisation in the kernel that leaves one reader out."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Generation with use_qk_l2norm_in_kernel goes wrong.",
    cause="Queries and keys were normalised, and p, which Comba reads the state with before it "
    "writes, was not. Here the keys read it.",
    source="flash-linear-attention cde25dfd (483), fused_recurrent of Comba",
    pinned=LawAbout(
        "differential",
        Case(
            op="delta_rule",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "use_qk_l2norm_in_kernel": True, "output_final_state": True},
            values="long_keys",
        ),
    ),
    planted=Edit(
        module="kernels.delta.keys",
        before="(normalized(q), normalized(k)) if use",
        after="(normalized(q), k) if use",
    ),
)
