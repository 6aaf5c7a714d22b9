"""A window on both sides, cut to the number of keys."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Keys inside the window dropped where there are more queries than keys and the right "
    "window is unbounded.",
    cause="window_size_right was clamped to seqlen_k. With the diagonal at the bottom right, a "
    "query may be as far from a key as there are queries.",
    source="flash-attention 895",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(19,),
            key_lengths=(6,),
            options={
                "scale": None,
                "causal": False,
                "window": 19,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="limit = q.shape[1] + k.shape[1]",
        after="limit = k.shape[1]",
    ),
)
