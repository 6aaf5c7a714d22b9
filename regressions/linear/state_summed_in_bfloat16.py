"""A state that is carried from chunk to chunk in the dtype of the inputs."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Long sequences drift: what is small beside the state is no longer added to it.",
    cause="The sum over chunks was rounded to 8 bits at each of them, within every error budget.",
    source="this project, planted to see what the laws miss",
    pinned=LawAbout(
        "exactness",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="bfloat16",
            dims={"B": 1, "H": 1, "K": 3, "V": 4},
            lengths=(100,),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="            carried += (s,)\n",
        after="            carried += (s.to(DTYPE).to(tl.float32),)\n",
    ),
)
