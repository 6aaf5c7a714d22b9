"""What is added to the logits, read for queries and keys that do not exist."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Illegal memory access for a score_mod that reads a tensor, where seqlen_q is not a "
    "multiple of the tile.",
    cause="The function was evaluated at indices out of bounds as well; only its result was "
    "masked.",
    source="flash-attention 2020 and 2091 (bba578d4, 052015a4)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3},
            lengths=(7,),
            given=("g",),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.logits",
        before="leading = tl.load(gate + tokens, mask=inside, other=0.0)",
        after="leading = tl.load(gate + tokens)",
    ),
    only_on="simulator",
)
