"""A finite lse for a row that sees no key."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="lse = -49993.98 for rows without keys; parts merged by it are corrupt.",
    cause="Masked logits got a large finite number, which leaked into the lse.",
    source="flashinfer 4452; vLLM 49294",
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
        after="tl.maximum(peak + tl.log2(total), -72127.0) * LN2",
    ),
)
