"""Bugs of normalization."""

from properties.planting.edit import Edit
from regressions.known_bug import KnownBug, pin

BUGS = {
    "epsilon_outside_the_root": KnownBug(
        happened="Training and inference differ for keys of small norm, 1e-3 for example.",
        cause=(
            "l2norm and the recurrent kernels, which normalize for themselves, had a formula "
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
    "gradient_of_the_gate_for_that_of_x": KnownBug(
        happened="A gated norm returns the gradient of its gate as that of x.",
        cause="`dx = dz.reshape(...)`, where it should have been dz.",
        source="flash-linear-attention issue 155, b2da339f",
        pinned=pin("layer_norm_gated", "fused", {"B": 1, "H": 1, "D": 5}, (3,)),
        planted=Edit(
            "kernels.norm.gated", "        dx,\n        dz,\n", "        dz.clone(),\n        dz,\n"
        ),
    ),
    "rows_counted_by_programs": KnownBug(
        happened="Gated norms of no tokens: the backward pass divides by zero.",
        cause="The rows of a program were the rows divided by the number of programs, of which "
        "there were none.",
        source="flash-linear-attention 0.6.0, `norm_of_no_tokens` of its ledger here",
        pinned=pin("rms_norm_gated", "fused", {"B": 1, "H": 1, "D": 5}, (0,)),
        planted=Edit(
            "kernels.norm.gated",
            '    parts = cdiv(count, blocks["ROWS"])\n',
            (
                '    parts = cdiv(count, blocks["ROWS"])\n'
                "    parts = cdiv(count, cdiv(count, parts))\n"
            ),
        ),
    ),
    "rows_rounded_up_to_programs": KnownBug(
        happened="The backward pass of norms reads and writes past the end for few tokens.",
        cause="The number of rows was overwritten by the rows of all programs.",
        source="flash-linear-attention f52529ee (795), layernorm and fused_norm_gate",
        pinned=pin("rms_norm_gated", "fused", {"B": 1, "H": 1, "D": 5}, (3,)),
        planted=Edit(
            "kernels.norm.gated",
            '    parts = cdiv(count, blocks["ROWS"])\n',
            '    parts = cdiv(count, blocks["ROWS"])\n    count = parts * blocks["ROWS"]\n',
        ),
        only_on="simulator",
    ),
}
