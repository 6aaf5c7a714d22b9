"""Values addressed by the stride of the keys from the second chunk on."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients where K != V and there is more than one chunk.",
    cause="v was addressed with the stride of k.",
    source="flash-linear-attention 1c403c3a (633), backward pass of path_attn",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(40,),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="y_ptr + start * heads * value_dim",
        after="y_ptr + start * heads * key_dim",
    ),
)
