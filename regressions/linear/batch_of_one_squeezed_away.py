"""A batch of one, squeezed away with the axis of the parts."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The batch dim is gone where B = 1.",
    cause="o.squeeze(1) for o.squeeze(0), the axis of the parts.",
    source="flash-linear-attention aef77f31, fused_recurrent of the delta rule",
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
        ),
    ),
    planted=Edit(
        module="kernels.primitives.parts",
        before="return parts[0]",
        after="return parts.squeeze()",
    ),
)
