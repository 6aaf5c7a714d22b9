"""Packed sequences in a batch of several rows."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Silent garbage from fourteen ops for cu_seqlens with B > 1.",
    cause="Nothing checked it.",
    source="flash-linear-attention 04629e0f (844), report 837",
    pinned=LawAbout(
        "rejection",
        Case(
            op="linear_attn",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(5, 2),
            packed=True,
            options={"scale": None, "normalize": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.arguments",
        before="    if batch != 1:\n",
        after="    if batch < 1:\n",
    ),
)
