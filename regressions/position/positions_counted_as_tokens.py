"""Three positions for each token."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="M-RoPE overwrote the memory behind queries and keys.",
    cause="The number of tokens was that of the positions, of which each token has three.",
    source="sgl-kernel-xpu 202",
    pinned=LawAbout(
        "differential",
        Case(
            op="multiaxis_rotary",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 12, "A": 3, "P": 6},
            lengths=(5,),
            options={"interleaved": False, "conjugate": False, "inplace": False},
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="vectors = batch * tokens * heads",
        after="vectors = (tokens if rows is None else rows.numel()) * heads",
    ),
)
