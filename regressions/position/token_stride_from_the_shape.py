"""Queries that are a slice of something wider."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong rotations where queries or keys are slices of another tensor, as in MLA.",
    cause="The kernel took tokens to lie heads * head_dim apart instead of reading the stride.",
    source="vLLM 16658, pull request 17091",
    pinned=LawAbout(
        "layout_invariance",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 6, "P": 3},
            lengths=(5,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="time * x_stride_t",
        after="time * heads * head_dim",
    ),
)
