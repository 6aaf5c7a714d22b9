"""The offset does not reach the kernel."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Decoding with the rotation fused into attention: every query turned as if it were "
    "at another position, once an offset was given. Prefill was right.",
    cause="The decode kernel took no notice of the offset that the prefill kernel honoured.",
    source="flashinfer 847",
    pinned=LawAbout(
        "plumbing",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 2, "H": 3, "D": 10, "P": 4},
            lengths=(6,),
            options={
                "interleaved": False,
                "seqlen_offsets": 4,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="row = (time + offset)",
        after="row = time",
    ),
)
