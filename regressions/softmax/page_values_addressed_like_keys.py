"""Values narrower than the keys of their page."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong outputs where the head dims of keys and values differ.",
    cause="The strides of the keys were used for the values.",
    source="flash-attention, commits 6d199aa2, e3b2400a, 9e07d6d3",
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
        module="kernels.softmax.paged",
        before="*v_pages.stride()",
        after="*k_pages.stride()",
    ),
)
