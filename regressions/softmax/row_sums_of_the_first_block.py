"""The maximum and sum of the first block of queries, for all blocks."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dq, dk and dv wrong as soon as a block of keys has more than one block of queries.",
    cause="lse and delta were loaded at m_block_min instead of m_block.",
    source="flash-attention, commit b3f1b6a5",
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
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="terms + first_row * 4, start, rows, high, bounded",
        after="terms + first_row * 4, bounds[0], rows, high, bounded",
    ),
)
