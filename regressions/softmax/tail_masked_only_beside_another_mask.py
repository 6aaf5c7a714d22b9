"""The end of the keys, masked only where another mask cuts the tile too."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in dq of packed sequences with many queries and few keys.",
    cause="The mask of the tail was applied only in blocks that the causal mask cuts as well; "
    "others read keys that do not exist.",
    source="flash-attention, report 443 and commit c65b5106",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3},
            lengths=(9, 21),
            key_lengths=(3, 19),
            packed=True,
            options={
                "scale": None,
                "causal": False,
                "window": 30,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="tl.minimum(common_high, high)",
        after="common_high",
    ),
)
