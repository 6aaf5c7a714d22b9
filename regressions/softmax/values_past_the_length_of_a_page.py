"""Rows of a page past the length."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN from a paged cache whose memory had been used before.",
    cause="The values past the length were read: their weight is 0, but 0 times NaN is NaN.",
    source="vLLM 641, pull request 936",
    pinned=LawAbout(
        "differential",
        Case(
            op="paged_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4},
            lengths=(1,),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "num_splits": 1,
                "return_lse": True,
            },
            seed=3,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.paged_forward",
        before="mask=inside[:, None] & in_dims[None, :]",
        after="mask=(columns < tl.cdiv(tl.max(tl.where(inside, columns + 1, 0), 0), size) * size)"
        "[:, None] & in_dims[None, :]",
    ),
)
