"""Outputs past the first tile of V that nobody writes."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Only the first BV outputs of a head are written where V = 512 is more than one tile.",
    cause="The offset of the output tile was 0 instead of i_v·BV.",
    source="flash-linear-attention ccb0ff94 (1031), attn_decoding_one_step",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 33},
            lengths=(3,),
            options={
                "scale": None,
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
            tile=1,
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="first_v = (program % num_v) * BV",
        after="first_v = 0",
    ),
)
