"""Negative positions."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in rows of a left-padded batch: offsets were negative there, and the rows were "
    "left as the memory was found.",
    cause="A test that the row of the tables exists skipped such tokens in an output made by "
    "empty_like, and nothing refused their offsets.",
    source="flash-linear-attention bd67d117, pull request 967",
    pinned=LawAbout(
        "rejection",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 1, "D": 6, "P": 3},
            lengths=(3,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="if low < 0 or high >= count:",
        after="if high >= count:",
    ),
)
