"""Tables that end before the sequence does."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Generation past the length of the cosine cache: an illegal memory access.",
    cause="The kernel read row offset + t of the tables without a test that there is one.",
    source="flash-linear-attention 1ec27894, issue 410, pull request 423",
    pinned=LawAbout(
        "rejection",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 6, "P": 3},
            lengths=(3, 4),
            packed=True,
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
        after="if low < 0:",
    ),
)
