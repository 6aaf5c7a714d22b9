"""One position for sequences of different lengths."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Batched generation from left-padded prompts: the rows of short prompts are garbage.",
    cause="The shared position of the cache, that of the longest sequence, was used for every row.",
    source="unsloth 3699 (pull requests 3795, 3803, 4078)",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 3, "D": 10, "P": 4},
            lengths=(1,),
            options={
                "interleaved": False,
                "seqlen_offsets": [3, 7],
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="rows = offsets[:, None]",
        after="rows = offsets.amax().expand(len(offsets))[:, None]",
    ),
)
