"""The gradient of o, addressed as if it were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients for a slice of a fused projection.",
    cause="Strides (D, 1) written out for dy.",
    source="flash-linear-attention 71ebc498 (871), in its convolution",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 2, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "normalize": False, "output_final_state": True},
            layout="heads_first",
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="q, k, v, g, do = contiguous(q, k, v, g, do)",
        after="q, k, v, g = contiguous(q, k, v, g)",
    ),
)
