"""Dims that are not turned, in a tensor that is not dense."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="n_dims < head_dim and a source that is not contiguous: the dims past n_dims are "
    "those of other elements.",
    cause="The copy of what is not turned took no notice of the strides.",
    source="llama.cpp 14580",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 9, "P": 2},
            lengths=(5,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
            layout="strided",
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="kept = tl.load(x_ptr + still * x_stride_d, mask=rest)",
        after="kept = tl.load(x_ptr + still, mask=rest)",
    ),
)
