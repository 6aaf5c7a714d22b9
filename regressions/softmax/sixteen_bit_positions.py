"""Positions in 16 bits."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Finite but wrong outputs from 65537 keys on, NaN from 32768 on elsewhere.",
    cause="The index of a token was cast to 16 bits: in one of the two by its code, in the other "
    "as its reporter infers.",
    source="PyTorch 162588 (fix 187225); xformers 719",
    pinned=LawAbout(
        "causality",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
            lengths=(2,),
            key_lengths=(32780,),
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
        before="columns = start + tl.arange(0, KEYS)",
        after="columns = (start + tl.arange(0, KEYS)).to(tl.int16).to(tl.int32)",
    ),
)
