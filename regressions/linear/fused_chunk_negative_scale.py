"""A negative scale in the fused chunk form."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="fused_chunk linear attention with a negative scale: output and gradients wrong, the "
    "chunk form right.",
    cause="A negative scale was taken for the sentinel, so its value was lost.",
    source="flash-linear-attention, fused_chunk_linear_attn (report of a user)",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(19,),
            options={"scale": -0.7, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.scale",
        before="if scale == -1:",
        after="if scale < 0:",
    ),
)
