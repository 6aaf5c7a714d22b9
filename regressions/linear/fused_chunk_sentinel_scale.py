"""The sentinel scale -1 taken literally."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="fused_chunk linear attention with scale=-1, then the sentinel for K ** -0.5, was "
    "wrong where the chunk form was right.",
    cause="One wrapper resolved the sentinel, the other passed it on to its kernel.",
    source="flash-linear-attention, fused_chunk_linear_attn (report of a user)",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(19,),
            options={"scale": -1, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.scale",
        before="    if scale == -1:\n        return key_dim**-0.5\n",
        after="",
    ),
)
