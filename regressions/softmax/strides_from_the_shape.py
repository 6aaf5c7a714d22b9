"""Transposed inputs, addressed as if they were contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong memory accesses for q, k and v that are transposed views.",
    cause="The layouts were rebuilt from the shapes. A last stride of 1 says nothing about the "
    "others.",
    source="flash-attention 2666, fixed by 2670 (46b2ae32)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 2, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            layout="heads_first",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="*k.stride()[:3], *v.stride()[:3], pairs, steps,\n            SINK",
        after="*k.contiguous().stride()[:3], *v.stride()[:3], pairs, steps,\n            SINK",
    ),
)
