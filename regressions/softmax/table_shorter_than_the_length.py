"""A table that ends before the length does."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silent corruption: the table of pages was read past its end.",
    cause="Nothing compared the lengths with the width of the table.",
    source="flash-attention 2709, pull request 2711 (77aacb68)",
    pinned=LawAbout(
        "rejection",
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
        before="if cdiv(length, size) > block_table.shape[1]:",
        after="if cdiv(length, size) > pool:",
    ),
)
