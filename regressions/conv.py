"""Bugs of short convolutions."""

from properties.planting.edit import Edit
from regressions.known_bug import KnownBug, pin

SMALL = {"B": 1, "D": 3, "W": 4}

BUGS = {
    "contiguous_dy": KnownBug(
        happened=(
            "Wrong dx, dweight and gradient of the initial state where y is split off a fused "
            "projection."
        ),
        cause="Strides (D, 1) written out for dy.",
        source="flash-linear-attention 71ebc498 (871)",
        pinned=pin(
            "short_conv", "fused", SMALL, (5,), given=("initial_state",), layout="heads_first"
        ),
        planted=Edit(
            "kernels.conv.short_conv",
            "dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)",
            "dy, dfinal = *contiguous(x, weight, bias, initial_state), d0, d1",
        ),
    ),
    "contiguous_x": KnownBug(
        happened="Wrong values for an x that is not contiguous.",
        cause="The function that launches the forward kernel had no guard that copies its inputs.",
        source="flash-linear-attention f5347537 (627)",
        pinned=pin("short_conv", "fused", SMALL, (5,), layout="sliced"),
        planted=Edit(
            "kernels.conv.short_conv",
            "x, weight, bias, initial_state = contiguous(x, weight, bias, initial_state)",
            "weight, bias, initial_state = contiguous(weight, bias, initial_state)",
        ),
    ),
    "head_rows_past_the_end": KnownBug(
        happened=(
            "Wrong gradients with an initial state where T < W: there it was dweight, here that "
            "of the state."
        ),
        cause="The mask of the rows that see the initial state lacked o_t < T.",
        source="flash-linear-attention 7cbe461b (774)",
        pinned=pin("short_conv", "fused", {"B": 2, "D": 3, "W": 4}, (1,), given=("initial_state",)),
        planted=Edit(
            "kernels.conv.short_conv",
            "inside = (cols < dim) & (row + n < left)\n",
            "inside = cols < dim\n",
        ),
    ),
    "last_stride_of_dy_is_one": KnownBug(
        happened=(
            "A wrong gradient of the initial state with an activation, for strided and for "
            "expanded gradients, as y.sum().backward() makes them."
        ),
        cause=(
            "The stride of the last dim of dy was taken to be 1, and y was addressed with the "
            "strides of dy."
        ),
        source="flash-linear-attention 6d80721f (1139), issue 1138, compute_dh0",
        pinned=pin(
            "short_conv",
            "fused",
            SMALL,
            (5,),
            given=("initial_state",),
            layout="strided",
            options={"activation": "silu"},
        ),
        planted=Edit(
            "kernels.conv.short_conv",
            "initial_state, dy, dfinal = contiguous(x, weight, bias, initial_state, d0, d1)",
            (
                "initial_state, dy, dfinal = contiguous(\n"
                "        x, weight, bias, initial_state,\n"
                "        d0.as_strided(d0.shape, (*d0.stride()[:2], 1)), d1,\n"
                "    )"
            ),
        ),
    ),
    "rows_that_pass_through_have_no_gradient": KnownBug(
        happened=(
            "A wrong gradient of the initial state where the final state has one and a sequence "
            "is shorter than the state, as chunks of one or two tokens are."
        ),
        cause="The gradient of what passes from the initial state to the final one was dropped.",
        source="flash-linear-attention a252c17d (1141), issue 1140",
        pinned=pin("short_conv", "fused", SMALL, (2,), given=("initial_state",)),
        planted=Edit(
            "kernels.conv.short_conv",
            "kept = inside & (row >= left)",
            "kept = inside & (row >= tl.maximum(left, W - 1))",
        ),
    ),
    "slot_from_a_clamped_start": KnownBug(
        happened=(
            "Wrong dx where the final state has a gradient and a sequence is shorter than the "
            "state, as chunks of one or two tokens are."
        ),
        cause=(
            "The row of the final state was counted from the first token that is kept, max(0, T - "
            "W + 1), and not from T - W + 1."
        ),
        source="flash-linear-attention a252c17d (1141), issue 1140",
        pinned=pin("short_conv", "fused", SMALL, (2,)),
        planted=Edit(
            "kernels.conv.short_conv",
            "(state + row - left) * dim",
            "(state + tl.maximum(row - tl.maximum(left, W - 1), 0)) * dim",
        ),
    ),
    "weight_summed_in_bfloat16": KnownBug(
        happened="A noisy gradient of the weight where it is the sum of many chunks.",
        cause="It was accumulated in bfloat16.",
        source="flash-linear-attention 794f183c (874), in its fused linear losses",
        pinned=pin(
            "short_conv",
            "fused",
            {"B": 1, "D": 5, "W": 4},
            (80,),
            law="exactness",
            dtype="bfloat16",
            tile=1,
            values="integers",
        ),
        planted=Edit(
            "kernels.conv.short_conv",
            "add_parts(dweight, weight.dtype)",
            "sum(dweight.to(weight.dtype))",
        ),
    ),
    "no_gradient_of_the_oldest_token": KnownBug(
        happened="The gradient of the oldest token of a convolution's state is lost.",
        cause="It was stored for the rows of a state but the first.",
        source="flash-linear-attention 0.6.0, `gradient_of_the_oldest_token` of its ledger here",
        pinned=pin("short_conv", "fused", {"B": 1, "D": 3, "W": 4}, (5,), given=("initial_state",)),
        planted=Edit(
            "kernels.conv.short_conv",
            "tl.store(dinitial_ptr + (state + row) * dim + cols, dx, mask=mask)",
            "tl.store(dinitial_ptr + (state + row) * dim + cols, dx * (row > 0), mask=mask)",
        ),
    ),
    "state_of_a_sequence_without_tokens": KnownBug(
        happened="The state of an empty sequence is never written.",
        cause="A state is written at the last token of its sequence.",
        source="flash-linear-attention 0.6.0, `shift_of_no_tokens` of its ledger here",
        pinned=pin(
            "token_shift", "fused", {"B": 1, "D": 2}, (0, 1), packed=True, given=("initial_state",)
        ),
        planted=Edit(
            "kernels.conv.short_conv",
            "final = _passed(initial_state, (chunks.sequences, taps - 1, dim), x.device)",
            "final = x.new_empty((chunks.sequences, taps - 1, dim), dtype=torch.float32)",
        ),
    ),
    "state_read_where_there_is_none": KnownBug(
        happened="Token shift of one token without a cache does not compile.",
        cause="The cache was read without a look at USE_INITIAL_STATE.",
        source="flash-linear-attention 1d9fd67c (583), token_shift",
        pinned=pin("token_shift", "fused", {"B": 1, "D": 2}, (1,)),
        planted=Edit(
            "kernels.conv.short_conv",
            "    if USE_INITIAL:\n        x += tl.load(initial_ptr + row",
            "    if True:\n        x += tl.load(initial_ptr + row",
        ),
    ),
}
