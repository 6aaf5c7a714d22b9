"""An lse of +inf for a row that sees no key."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Prefill in chunks went wrong on A100: a part without keys got all of the weight.",
    cause="One version of the kernel returns +inf for such a row, another -inf, and the merge "
    "expected -inf.",
    source="vLLM 15492",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            key_lengths=(3,),
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
        module="kernels.softmax.forward",
        before="(peak + tl.log2(total)) * LN2",
        after="tl.where(total == 0.0, -1.0, 1.0) * (peak + tl.log2(total)) * LN2",
    ),
)
