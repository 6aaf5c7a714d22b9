"""The mask of the state, transposed."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A corrupted state where K != V.",
    cause="The mask was [V, K], the tile [K, V].",
    source="flash-linear-attention eb7c8baa",
    pinned=LawAbout(
        "differential",
        Case(
            op="linear_attn",
            mode="fused_chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5,),
            given=("initial_state",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_chunk",
        before="inside = (keys[:, None] < key_dim) & (values[None, :] < value_dim)",
        after="inside = (keys[:, None] < value_dim) & (values[None, :] < key_dim)",
    ),
)
