"""Each head at a position of its own."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Head h is turned by the angle of position + h.",
    cause="For an input [B, T, H, D] the kernel counted positions along the heads.",
    source="emlx 121 (mlx fast::rope)",
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
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="row = (time + offset)",
        after="row = (time + head + offset)",
    ),
)
