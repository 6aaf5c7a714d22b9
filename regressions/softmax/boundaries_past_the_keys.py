"""Boundaries that end past the keys."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A mask made for more keys than there are reads past the end of K and V.",
    cause="Nothing compared the two lengths.",
    source="xformers 1122",
    pinned=LawAbout(
        "rejection",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5, 7),
            key_lengths=(6, 3),
            packed=True,
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before='    check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)\n    sequences',
        after="    sequences",
    ),
)
