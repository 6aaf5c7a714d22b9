"""The scale twice in a gradient of the fused chunk form."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dv of fused_chunk linear attention wrong for every scale but 1.",
    cause="The backward pass applied the scale twice to one gradient and not at all to another.",
    source="flash-linear-attention 85992884, issue 47",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 3, "V": 5},
            lengths=(18,),
            options={"scale": 0.5, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_chunk",
        before="write_factor=scale, reverse=True, final=initial_state is not None,",
        after="write_factor=scale**2, reverse=True, final=initial_state is not None,",
    ),
)
