"""A group's gradient of its keys, summed from gradients that are rounded for each head."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="An infinite gradient of C in float16, where the sum over the heads is finite.",
    cause="Keys were copied for each head by autograd, which adds in the dtype of the keys.",
    source="this project, mamba2 and the grouped delta rules",
    pinned=LawAbout(
        "differential",
        Case(
            op="mamba2",
            mode="chunk",
            dtype="float16",
            dims={"B": 1, "G": 1, "R": 2, "K": 1, "V": 1},
            lengths=(15,),
            options={"output_final_state": True},
            values="large_states",
        ),
    ),
    planted=Edit(
        module="kernels.primitives.groups",
        before="return x.dtype if x.shape[2] == heads else torch.float32",
        after="return x.dtype",
    ),
)
