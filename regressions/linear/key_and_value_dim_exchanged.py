"""K and V exchanged in the states between chunks."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong states where K != V.",
    cause="B, T, H, V, K = *k.shape, v.shape[-1].",
    source="flash-linear-attention f6f85b60, chunk_fwd_h",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="heads, key_dim, value_dim = x.shape[2], x.shape[3], y.shape[3]",
        after="heads, value_dim, key_dim = x.shape[2], x.shape[3], y.shape[3]",
    ),
)
