"""A window that keeps one key too many."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="sliding_window = 2048 keeps 2048 keys in one backend and 2049 in another.",
    cause="W passed on as a bound that is inclusive; it should be W - 1.",
    source="vLLM 3385; transformers 29623",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": True,
                "window": 3,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="visible & (key > position - window)",
        after="visible & (key >= position - window)",
    ),
)
