"""Packed sequences that see each other."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Attention across samples, and wrong log-probabilities, for packed rows.",
    cause="The backend was given no mask, and ignored cu_seqlens.",
    source="AReaL 1442; maxtext 4476",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5, 7),
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
        before="*contiguous(sink, alibi_slopes), g, cu_seqlens, cu_seqlens_k,",
        after="*contiguous(sink, alibi_slopes), g, None, None,",
    ),
)
