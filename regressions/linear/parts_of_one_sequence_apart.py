"""Parts of a gradient, as far apart as one sequence is long."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dg of packed sequences written outside its slab where K is more than one tile.",
    cause="The offset i_k·B·T·H, computed after T had been overwritten by the length of the "
    "sequence.",
    source="flash-linear-attention 0dfd7f5f; the same in cf3aff73 (479)",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 33},
            lengths=(3, 2),
            packed=True,
            given=("g",),
            options={
                "scale": None,
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
            tile=1,
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="row_k = part_v.to(tl.int64) * rows",
        after="row_k = part_v.to(tl.int64) * (length * heads)",
    ),
)
