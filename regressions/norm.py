"""Bugs of normalization."""

from properties.planting.edit import Edit
from regressions.known_bug import KnownBug, pin

BUGS = {
    "epsilon_outside_the_root": KnownBug(
        happened="Training and inference differ for keys of small norm, 1e-3 for example.",
        cause=(
            "l2norm and the recurrent kernels, which normalise for themselves, had a formula "
            "each: sqrt(sum) + eps and sqrt(sum + eps)."
        ),
        source="flash-linear-attention 9b9e47d7 and 25493c55",
        pinned=pin("l2norm", "fused", {"B": 1, "H": 1, "D": 5}, (3,), options={"eps": 1.0}),
        planted=Edit(
            "kernels.norm.l2norm",
            "1.0 / tl.sqrt(tl.sum(x * x, 1) + eps)",
            "1.0 / (tl.sqrt(tl.sum(x * x, 1)) + eps)",
        ),
    ),
    "flat_index_into_a_view": KnownBug(
        happened="Wrong values for a half of x.chunk(2, -1).",
        cause="A flat index, and no guard that copies the input.",
        source="flash-linear-attention f24317a6 (765), issue 759, in its activations",
        pinned=pin(
            "l2norm", "fused", {"B": 1, "H": 1, "D": 5}, (3,), layout="sliced", options={"eps": 1.0}
        ),
        planted=Edit(
            "kernels.norm.l2norm",
            "x, *others = contiguous(x, *others)",
            "others = contiguous(*others)",
        ),
    ),
}
