"""Gates of a delta rule loaded past the head dim."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN or garbage in o and in the final state for a head dim of 60 or 100.",
    cause="The loads of the gates had no mask, and a tile is as wide as the next power of two.",
    source="flash-linear-attention 1171 (gated delta rule); issue 1134, b67113b4 (1135) (KDA)",
    pinned=LawAbout(
        "differential",
        Case(
            op="kda",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(3,),
            given=("g",),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.fused_recurrent",
        before="_load(g_ptr, row, key_dim, keys, in_k)",
        after="_load(g_ptr, row, key_dim, keys, keys >= 0)",
    ),
    only_on="simulator",
)
