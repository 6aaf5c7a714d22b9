"""Keys past the end, let into dq because their rows of K are zeros."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in dq, with dk and dv right: float16, one token of one head of 16, inputs three "
    "times too large.",
    cause="Elements past seqlen_k were not masked, as their rows of K are zero; but exp(0 - "
    "lse)·dP overflows where the lse is very negative, and Inf·0 is NaN.",
    source="flash-attention, report 334 and commit a4f148b6",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float16",
            dims={"B": 1, "G": 1, "R": 2, "K": 16, "V": 3},
            lengths=(9,),
            key_lengths=(2,),
            options={
                "scale": 2.0,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            values="large_logits",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="sees(key < high,",
        after="sees(key >= 0,",
    ),
)
