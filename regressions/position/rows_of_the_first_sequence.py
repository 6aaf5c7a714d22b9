"""Positions of batch row 0 for all."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong outputs of a multimodal model as soon as its positions differed between the "
    "rows of a batch.",
    cause="The kernel addressed cosines and sines by the token within its sequence, so that every "
    "sequence read the rows of the first.",
    source="Liger-Kernel 461, 464",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 3, "D": 10, "P": 4},
            lengths=(5,),
            options={
                "interleaved": False,
                "seqlen_offsets": [0, 7],
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="batch * rows_stride_b + time * rows_stride_t",
        after="time * rows_stride_t",
    ),
)
