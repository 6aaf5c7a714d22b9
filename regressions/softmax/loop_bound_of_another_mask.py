"""Keys that the mask allows, behind the end of the loop."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Allowed keys missed: a custom mask that exposes later tiles, beside is_causal=True.",
    cause="The loop over the keys still ended at the diagonal.",
    source="SGLang 39593",
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
                "window": 30,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="high = tl.minimum(high, last + shift + window)",
        after="high = tl.minimum(high, last + shift + 1)",
    ),
)
