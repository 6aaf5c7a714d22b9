"""The gradient of o, read with a last stride of 1."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients for y.sum().backward(), whose gradient is expanded, and for strided "
    "ones.",
    cause="The stride of the last dim was taken to be 1.",
    source="flash-linear-attention 6d80721f (1139), issue 1138, in its convolution",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={
                "scale": None,
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
            layout="strided",
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="*rows, do = dense_rows(q, k, v, g, gv, do)",
        after="rows = dense_rows(q, k, v, g, gv)",
    ),
)
