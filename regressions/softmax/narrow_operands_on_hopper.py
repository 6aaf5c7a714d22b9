"""Warp-group products of operands narrower than a full swizzle."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Attention with value heads of 16 or less, in 16 bits on an H200: wrong outputs that "
    "change from call to call, or an illegal memory access. compute-sanitizer: an invalid read of "
    "shared memory in tl.dot. The simulator and smaller tiles are right.",
    cause="Triton 3.6 addresses a transposed operand of a warp-group product wrongly if its rows "
    "are shorter than 128 bytes. Seen in three kernels; rows of 64 elements are right in all.",
    source="found by python -m properties.fuzz --device cuda (H200, torch 2.11, Triton 3.6.0)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="bfloat16",
            dims={"B": 1, "G": 1, "R": 1, "K": 64, "V": 16},
            lengths=(70, 133),
            packed=True,
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            layout="sliced",
            seed=202,
        ),
    ),
    planted=Edit(
        module="kernels.tiles",
        before="return 64 if itemsize == 2 and self.tokens >= 64 and self.num_warps >= 4 else 16",
        after="return 16",
    ),
    only_on="cuda",
)
