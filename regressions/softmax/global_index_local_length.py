"""The index of a token in the batch, compared with the length of its sequence."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Rows past 65536 are not computed.",
    cause="The mask compared a global index with a local length.",
    source="flash-linear-attention 5aea42b7 (907), gate_output_correction of RWKV-7",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5, 7),
            packed=True,
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
        module="kernels.softmax.gates",
        before="inside = t < length\n",
        after="inside = start + t < length\n",
    ),
)
