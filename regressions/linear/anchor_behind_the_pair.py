"""Decays of pairs from an anchor that may lie behind both."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Outputs and gradients of a prefix change with a later gate: KDA with safe_gate and a "
    "last sub-chunk that is not full, T = 22 for example.",
    cause="The anchor of the exponents was row min(BC // 2, T - i - 1) of the sub-chunk, so it "
    "depended on later rows and on the length.",
    source="flash-linear-attention issue 1240",
    pinned=LawAbout(
        "causality",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(22,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.primitives.decay",
        before="* tl.exp(select_and_sum(mask, rest, 0))",
        after="* (\n"
        "            tl.exp(select_and_sum(mask, rest, 0) - tl.sum(rest, 0)) * "
        "tl.exp(tl.sum(rest, 0))\n"
        "        )",
    ),
)
