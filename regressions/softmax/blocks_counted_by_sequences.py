"""As many blocks as there are sequences."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A buffer of the wrong size where a sequence is longer than a block.",
    cause="num_blocks was the number of sequences.",
    source="flash-linear-attention 6b7df989, path_attn",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(40,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="count = cdiv(longest, shape.tokens)\n    q, k, v",
        after="count = sequences\n    q, k, v",
    ),
)
