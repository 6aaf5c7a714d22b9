"""Pairs of a partial rotation, half a head apart."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="rotary_dim < head_dim: wrong outputs, or reads outside the tables.",
    cause="The partner of dim i was dim i + head_dim // 2, hard-coded, where it is i + rotary_dim "
    "// 2.",
    source="Liger-Kernel 1451",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 12, "P": 3},
            lengths=(5,),
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
        before="x2 = tl.load(x_ptr + (pairs + pair)",
        after="x2 = tl.load(x_ptr + (head_dim // 2 + pair)",
    ),
)
