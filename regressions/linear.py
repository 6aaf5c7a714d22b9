"""Bugs of linear recurrences."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug, pin

SMALL = {"B": 1, "H": 1, "K": 5, "V": 3}
STEPS = pin("linear_attn", "fused_recurrent", SMALL, (5,))
CHUNKS = pin("linear_attn", "chunk", SMALL, (5,))

BUGS = {
    "anchor_behind_the_pair": KnownBug(
        happened=(
            "Outputs and gradients of a prefix change with a later gate: KDA with safe_gate and a "
            "last sub-chunk that is not full, T = 22 for example."
        ),
        cause=(
            "The anchor of the exponents was row min(BC // 2, T - i - 1) of the sub-chunk, so it "
            "depended on later rows and on the length."
        ),
        source="flash-linear-attention issue 1240",
        pinned=pin("gla", "chunk", SMALL, (22,), law="causality", given=("g",)),
        planted=Edit(
            "kernels.primitives.decay",
            "* tl.exp(select_and_sum(mask, rest, 0))",
            (
                "* (\n"
                "            tl.exp(select_and_sum(mask, rest, 0) - tl.sum(rest, 0)) * "
                "tl.exp(tl.sum(rest, 0))\n"
                "        )"
            ),
        ),
    ),
    "angles_run_on_in_a_pack": KnownBug(
        happened="Packed sequences read their initial states at wrong angles, and hand on others.",
        cause=(
            "The angles of all tokens were summed as those of one sequence. Without a state only "
            "differences count, and nothing is seen."
        ),
        source="mamba 74384882 (911), Mamba-3 with several inputs and outputs",
        pinned=pin(
            "mamba3",
            "chunk",
            {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3, "P": 2},
            (3, 2),
            packed=True,
            given=("initial_state",),
        ),
        planted=Edit(
            "kernels.linear.turns",
            "sums = sums - (sums - parts)[:, first]",
            "sums = sums - 0 * first[:, None]",
        ),
    ),
    "batch_of_one_squeezed_away": KnownBug(
        happened="The batch dim is gone where B = 1.",
        cause="o.squeeze(1) for o.squeeze(0), the axis of the parts.",
        source="flash-linear-attention aef77f31, fused_recurrent of the delta rule",
        pinned=STEPS,
        planted=Edit("kernels.primitives.parts", "return parts[0]", "return parts.squeeze()"),
    ),
    "chunk_length_written_out": KnownBug(
        happened="Wrong gradients of KDA with any chunk_size but 64.",
        cause="BT = 64, written out in the backward pass.",
        source="flash-linear-attention 769035e9 (876) and 424b3330 (935)",
        pinned=pin("gla", "chunk", SMALL, (37,), given=("g",)),
        planted=Edit(
            "kernels.linear.chunk",
            (
                "C=tile.tokens, BK=BK, BV=BV, LEVELS=tile.tokens.bit_length() - 1,\n"
                "        **gate_flags(g), DELTA"
            ),
            "C=32, BK=BK, BV=BV, LEVELS=5,\n        **gate_flags(g), DELTA",
        ),
    ),
    "contiguous_do": KnownBug(
        happened="Wrong gradients for a slice of a fused projection.",
        cause="Strides (D, 1) written out for dy.",
        source="flash-linear-attention 71ebc498 (871), in its convolution",
        pinned=pin(
            "linear_attn", "chunk", {"B": 1, "H": 2, "K": 5, "V": 3}, (5,), layout="heads_first"
        ),
        planted=Edit(
            "kernels.linear.chunk",
            "q, k, v, g, do = contiguous(q, k, v, g, do)",
            "q, k, v, g = contiguous(q, k, v, g)",
        ),
    ),
    "decay_anchored_at_the_chunk": KnownBug(
        happened="Wrong dk and dg for sequences of more than one block.",
        cause="The decays of a block were taken relative to its chunk.",
        source="flash-linear-attention 9d148e32, a226c0c9 and 0a83fd3f, parallel_simple_gla",
        pinned=pin("gla", "chunk", SMALL, (7,), given=("g",)),
        planted=Edit(
            "kernels.primitives.decay", "tl.where(query, half, r + 1)", "tl.where(query, 0, r + 1)"
        ),
    ),
    "decay_from_the_start_of_a_chunk": KnownBug(
        happened="NaN from the fused chunk form of GLA after 43884 tokens.",
        cause=(
            "exp(P_i)·exp(-P_j) overflows where the gates up to token j have summed up, however "
            "near "
            "i is to j."
        ),
        source="flash-linear-attention 458c0186, issue 122",
        pinned=pin("gla", "chunk", SMALL, (21,), given=("g",), values="extreme_gates"),
        planted=Edit(
            "kernels.linear.channel_gates",
            "decayed = decay(level_span(level, C, EXCLUSIVE), g, DTYPE)\n            q =",
            (
                "decayed = tl.exp(\n"
                "                tl.where(readers, 1.0, -1.0) * tl.cumsum(g.to(tl.float32), 0)\n"
                "            )\n"
                "            q ="
            ),
        ),
    ),
    "decay_of_the_blocks_between": KnownBug(
        happened=(
            "Wrong dk and dg in the parallel form of simple GLA for sequences of more than one "
            "block; here o."
        ),
        cause=(
            "The decays of a block were taken relative to another place than those of the blocks "
            "it meets."
        ),
        source="flash-linear-attention 9d148e32, a226c0c9 and 0a83fd3f, parallel_simple_gla",
        pinned=pin("simple_gla", "parallel", SMALL, (37,), given=("g",), tile=1),
        planted=Edit(
            "kernels.linear.parallel",
            "A *= (head_decay(1, g, DTYPE) * passed)[None, :]\n",
            "A *= head_decay(1, g, DTYPE)[None, :]\n",
        ),
    ),
    "decay_to_the_end_as_a_difference": KnownBug(
        happened="Inf and then NaN in the states of Mamba 2 where |A| is large.",
        cause=(
            "cs_last - cs_k of the prefix sums of a chunk is above 0 by their rounding, and "
            "nothing took the lesser of it and 0."
        ),
        source="vLLM 37501; mamba 713",
        pinned=TestAt(
            "kernels/linear/test_recurrence.py::"
            "test_small_gates_behind_large_ones_keep_their_digits[simple_gla-chunk]"
        ),
        planted=Edit(
            "kernels.linear.chunk",
            "y *= head_decay(0 if REVERSE else 1, g, DTYPE)[:, None] * factor\n",
            (
                "P = tl.cumsum(g.to(tl.float32), 0)\n"
                "            to_end = tl.sum(g.to(tl.float32), 0) - P\n"
                "            y *= tl.exp(P if REVERSE else to_end)[:, None] * factor\n"
            ),
        ),
    ),
    "decay_without_a_gate": KnownBug(
        happened="NaN in dv without a gate, or an undefined name.",
        cause="The decay stood outside the branch of USE_G.",
        source="flash-linear-attention 6315d0ba (178)",
        pinned=CHUNKS,
        planted=Edit(
            "kernels.linear.chunk",
            "**rows.flags(), USE_STATES",
            '**(rows.flags() | {"USE_G": True}), USE_STATES',
        ),
    ),
    "exponential_before_the_mask": KnownBug(
        happened=(
            "NaN gradients of x and dt in the first iteration of Mamba 2; a chunk size of 1 is "
            "clean."
        ),
        cause=(
            "The exponential of prefix sums less prefix sums was taken for all pairs: for a key "
            "behind the query it is infinite, and the mask came after."
        ),
        source="mamba 352, 353, 354 and 558 (as users found it)",
        pinned=pin(
            "mamba2",
            "chunk",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (21,),
            values="extreme_gates",
            seed=3,
        ),
        planted=Edit(
            "kernels.primitives.decay",
            "tl.where(chunk_span(side, C), between, 0).to(tl.float32)",
            "between.to(tl.float32)",
        ),
    ),
    "final_states_of_the_batch": KnownBug(
        happened="The final state of packed sequences too small, and heap corruption.",
        cause="new_empty(B, ...) where it should be N.",
        source="flash-linear-attention, fused_recurrent of the IPLR delta rule, before 0.6.0",
        pinned=pin("gla", "fused_recurrent", SMALL, (3, 2), packed=True),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "sequences, heads, key_dim, value_dim, dtype=torch.float32",
            "batch, heads, key_dim, value_dim, dtype=torch.float32",
        ),
    ),
    "first_value_tile_alone": KnownBug(
        happened=(
            "Only the first BV outputs of a head are written where V = 512 is more than one tile."
        ),
        cause="The offset of the output tile was 0 instead of i_v·BV.",
        source="flash-linear-attention ccb0ff94 (1031), attn_decoding_one_step",
        pinned=pin("gla", "fused_recurrent", {"B": 1, "H": 1, "K": 5, "V": 33}, (3,), tile=1),
        planted=Edit(
            "kernels.linear.fused_recurrent", "first_v = (program % num_v) * BV", "first_v = 0"
        ),
    ),
    "fused_chunk_negative_scale": KnownBug(
        happened=(
            "fused_chunk linear attention with a negative scale: output and gradients wrong, the "
            "chunk form right."
        ),
        cause="A negative scale was taken for the sentinel, so its value was lost.",
        source="flash-linear-attention, fused_chunk_linear_attn (report of a user)",
        pinned=pin(
            "linear_attn",
            "fused_chunk",
            {"B": 1, "H": 2, "K": 5, "V": 3},
            (19,),
            options={"scale": -0.7},
        ),
        planted=Edit("kernels.scale", "if scale == -1:", "if scale < 0:"),
    ),
    "fused_chunk_scale_in_gradient": KnownBug(
        happened="dv of fused_chunk linear attention wrong for every scale but 1.",
        cause=(
            "The backward pass applied the scale twice to one gradient and not at all to another."
        ),
        source="flash-linear-attention 85992884, issue 47",
        pinned=pin(
            "linear_attn",
            "fused_chunk",
            {"B": 1, "H": 1, "K": 3, "V": 5},
            (18,),
            options={"scale": 0.5},
        ),
        planted=Edit(
            "kernels.linear.fused_chunk",
            "write_factor=scale, reverse=True, final=initial_state is not None,",
            "write_factor=scale**2, reverse=True, final=initial_state is not None,",
        ),
    ),
    "fused_chunk_sentinel_scale": KnownBug(
        happened=(
            "fused_chunk linear attention with scale=-1, then the sentinel for K ** -0.5, was "
            "wrong where the chunk form was right."
        ),
        cause="One wrapper resolved the sentinel, the other passed it on to its kernel.",
        source="flash-linear-attention, fused_chunk_linear_attn (report of a user)",
        pinned=pin(
            "linear_attn",
            "fused_chunk",
            {"B": 1, "H": 2, "K": 5, "V": 3},
            (19,),
            options={"scale": -1},
        ),
        planted=Edit("kernels.scale", "    if scale == -1:\n        return key_dim**-0.5\n", ""),
    ),
    "gates_of_the_first_head": KnownBug(
        happened="All heads decay by the gates of head 0 in context-parallel KDA.",
        cause="The offset of the head was missing from the address of the gates.",
        source="flash-linear-attention d38ed8b5 (781)",
        pinned=pin("gla", "chunk", {"B": 1, "H": 2, "K": 5, "V": 3}, (20,), given=("g",)),
        planted=Edit(
            "kernels.linear.channel_gates", "g_ptr += offset", "g_ptr += offset - head * key_dim"
        ),
    ),
    "gates_past_the_head_dim": KnownBug(
        happened="NaN or garbage in o and in the final state for a head dim of 60 or 100.",
        cause="The loads of the gates had no mask, and a tile is as wide as the next power of two.",
        source="flash-linear-attention 1171 (gated delta rule); issue 1134, b67113b4 (1135) (KDA)",
        pinned=pin("gla", "fused_recurrent", SMALL, (3,), given=("g",), layout="sliced"),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "_row(g_ptr, t, g_stride, cols_k, in_k)",
            "_row(g_ptr, t, g_stride, cols_k, cols_k >= 0)",
        ),
    ),
    "gradient_of_the_final_state_per_chunk": KnownBug(
        happened="Wrong gradients of long sequences whose final state gets one.",
        cause="Every split of the sequence started from dht, and their sum held it as often.",
        source="flash-linear-attention c3f16354, split-h",
        pinned=pin("gla", "chunk", SMALL, (40,), given=("g",)),
        planted=Edit(
            "kernels.linear.chunk",
            "FINE_A=True, FINE_B=USE_G or DELTA, acc=s)",
            (
                "FINE_A=True, FINE_B=USE_G or DELTA, acc=s)\n"
                "                if REVERSE:\n"
                "                    s += load_rows(initial_ptr + state + part * part_size, "
                "keys, values, "
                "value_dim, initial_rows - skip, value_dim)"
            ),
        ),
    ),
    "gradients_too_few": KnownBug(
        happened="RuntimeError: an incorrect number of gradients, 16 against 14.",
        cause=(
            "The forward function had got new arguments, and what the backward function returns "
            "had "
            "not."
        ),
        source="mamba 431",
        pinned=STEPS,
        planted=Edit(
            "kernels.differentiable",
            "return *wanted, *(None for _ in settings)",
            "return tuple(wanted)",
        ),
    ),
    "gradients_without_a_gate": KnownBug(
        happened="Garbage in dk and dbeta where there is no gate.",
        cause="What belongs into the else of USE_G was not there.",
        source="flash-linear-attention 23da0a15 (863), issue 862, prepare_wy_repr_bwd",
        pinned=CHUNKS,
        planted=Edit("kernels.linear.chunk", "        dk += product(tl.trans(dA), q, DTYPE)\n", ""),
    ),
    "heads_narrower_than_a_dot": KnownBug(
        happened=(
            "A GLA layer with expand_k=0.5 and heads of 16 has keys of 8: an AssertionError from "
            "Triton's compiler."
        ),
        cause="tl.dot wants at least 16 rows and columns; the tile was as narrow as the head.",
        source="flash-linear-attention (report of a user)",
        pinned=pin(
            "gla", "chunk", {"B": 1, "H": 2, "K": 8, "V": 16}, (21,), dtype="bfloat16", given=("g",)
        ),
        planted=Edit(
            "kernels.linear.tiles",
            (
                "return max(least, _width(key_dim, widest)), "
                "max(least, _width(value_dim, tile.features))"
            ),
            (
                "return min(next_power_of_2(key_dim), widest), "
                "min(next_power_of_2(value_dim), tile.features)"
            ),
        ),
    ),
    "initial_state_does_not_decay": KnownBug(
        happened="A prefill in chunks differs from one in full.",
        cause=(
            "Decays were taken from the start of the chunk instead of the start of the "
            "sequence, and "
            "that of the initial state with them."
        ),
        source="vLLM 21783 and 23279, Mamba 2",
        pinned=pin("gla", "chunk", SMALL, (20,), given=("g", "initial_state")),
        planted=Edit(
            "kernels.linear.chunk", "s *= passed", "s *= tl.where(step == 0, 1.0, passed)"
        ),
    ),
    "key_and_value_dim_exchanged": KnownBug(
        happened="Wrong states where K != V.",
        cause="B, T, H, V, K = *k.shape, v.shape[-1].",
        source="flash-linear-attention f6f85b60, chunk_fwd_h",
        pinned=CHUNKS,
        planted=Edit(
            "kernels.linear.chunk",
            "heads, key_dim, value_dim = x.shape[2], x.shape[3], y.shape[3]",
            "heads, value_dim, key_dim = x.shape[2], x.shape[3], y.shape[3]",
        ),
    ),
    "last_stride_of_do_is_one": KnownBug(
        happened=(
            "Wrong gradients for y.sum().backward(), whose gradient is expanded, and for strided "
            "ones."
        ),
        cause="The stride of the last dim was taken to be 1.",
        source="flash-linear-attention 6d80721f (1139), issue 1138, in its convolution",
        pinned=pin("linear_attn", "fused_recurrent", SMALL, (5,), layout="strided"),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "*rows, do = dense_rows(q, k, v, g, gv, do)",
            "rows = dense_rows(q, k, v, g, gv)",
        ),
    ),
    "length_of_no_sequence": KnownBug(
        happened=(
            "ZeroDivisionError for a batch of 0, as padding for CUDA graphs has it; SIGFPE for no "
            "keys."
        ),
        cause=(
            "A heuristic divides by the amount of work: num_splits by the number of blocks, a "
            "swizzle by the size of a head."
        ),
        source=(
            "flash-attention 2503 and 2515 (commit 484b9813), 2470 (commit 03cd0651) and commit "
            "74dfa43c"
        ),
        pinned=pin("linear_attn", "chunk", {"B": 0, "H": 1, "K": 5, "V": 3}, (4,)),
        planted=Edit(
            "kernels.recurrence",
            'tokens=sizes["B"] * sizes["T"],\n        sequences=sequences,',
            'tokens=sizes["B"] * sizes["T"] // sequences,\n        sequences=1,',
        ),
    ),
    "mask_of_the_state_transposed": KnownBug(
        happened="A corrupted state where K != V.",
        cause="The mask was [V, K], the tile [K, V].",
        source="flash-linear-attention eb7c8baa",
        pinned=pin("linear_attn", "fused_chunk", SMALL, (5,), given=("initial_state",)),
        planted=Edit(
            "kernels.linear.fused_chunk",
            "inside = (keys[:, None] < key_dim) & (values[None, :] < value_dim)",
            "inside = (keys[:, None] < value_dim) & (values[None, :] < key_dim)",
        ),
    ),
    "normalizer_of_zero": KnownBug(
        happened="NaN where all features of a query or of all keys are 0, as relu can make them.",
        cause="x / x.sum() without a guard.",
        source="flash-linear-attention, sum_norm of DeltaNet, before 0.6.0",
        pinned=pin(
            "linear_attn",
            "fused_recurrent",
            SMALL,
            (5,),
            values="zeros",
            seed=2,
            options={"normalize": True},
        ),
        planted=Edit("kernels.linear.normalize", "torch.where(empty, 1.0, weights)", "weights"),
    ),
    "one_gate_past_the_end": KnownBug(
        happened="Reads past the end of a sequence.",
        cause="> T where it should be >= T.",
        source="flash-linear-attention be882f3b (527), GSA",
        pinned=pin("gla", "chunk", SMALL, (5, 7), packed=True, given=("g",)),
        planted=Edit(
            "kernels.primitives.decay",
            "(rows[:, None] < num_rows) & (cols[None, :] < num_cols)\n    g =",
            "(rows[:, None] <= num_rows) & (cols[None, :] < num_cols)\n    g =",
        ),
    ),
    "one_token_is_taken_for_decoding": KnownBug(
        happened=(
            "Reads and writes out of bounds, a crash, for a single token packed beside an empty "
            "sequence."
        ),
        cause="IS_DECODE = (T == 1) looked at the tokens of the batch and not at cu_seqlens.",
        source="flash-linear-attention, fused_mul_recurrent_rwkv7, before 0.6.0",
        pinned=pin("gla", "fused_recurrent", SMALL, (0, 1), packed=True, given=("initial_state",)),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            (
                "        PACKED=cu_seqlens is not None,\n"
                "        num_warps=tile.num_warps,\n"
                "    )  # fmt: skip\n"
                "    return add_parts(o"
            ),
            (
                "        PACKED=cu_seqlens is not None and tokens > 1,\n"
                "        num_warps=tile.num_warps,\n"
                "    )  # fmt: skip\n"
                "    return add_parts(o"
            ),
        ),
    ),
    "oracle_normalizes_over_heads": KnownBug(
        happened="The reference of normalized linear attention was wrong, not the kernel.",
        cause="The keys were summed along the axis of the heads instead of that of the tokens.",
        source="flash-linear-attention 12e2a700 (851), issue 850, naive_chunk_linear_attn",
        pinned=TestAt(
            "reference/linear/test_linear_attn.py::test_two_tokens_normalized_by_hand[linear_attn]"
        ),
        planted=Edit(
            "reference.linear.normalize",
            "_divide(o[..., :-1], o[..., -1:])",
            '_divide(o[..., :-1], (arguments["q"] * arguments["k"].cumsum(2)).sum(-1, True))',
        ),
    ),
    "packed_batch_accepted": KnownBug(
        happened="Silent garbage from fourteen ops for cu_seqlens with B > 1.",
        cause="Nothing checked it.",
        source="flash-linear-attention 04629e0f (844), report 837",
        pinned=pin("linear_attn", "chunk", SMALL, (5, 2), law="rejection", packed=True),
        planted=Edit("kernels.arguments", "    if batch != 1:\n", "    if batch < 1:\n"),
    ),
    "parts_of_one_sequence_apart": KnownBug(
        happened="dg of packed sequences written outside its slab where K is more than one tile.",
        cause=(
            "The offset i_k·B·T·H, computed after T had been overwritten by the length of the "
            "sequence."
        ),
        source="flash-linear-attention 0dfd7f5f; the same in cf3aff73 (479)",
        pinned=pin(
            "gla",
            "fused_recurrent",
            {"B": 1, "H": 1, "K": 5, "V": 33},
            (3, 2),
            packed=True,
            given=("g",),
            tile=1,
        ),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "row_k = part_v.to(tl.int64) * rows",
            "row_k = part_v.to(tl.int64) * (length * heads)",
        ),
    ),
    "rows_of_gates_one_head_apart": KnownBug(
        happened="A stabiliser of the wrong row, and a risk of overflow, with more than one head.",
        cause="The stride from row to row was K instead of H·K.",
        source="flash-linear-attention 40334f1c (1085), DPLR with safe_gate",
        pinned=pin("gla", "chunk", {"B": 1, "H": 2, "K": 5, "V": 3}, (5,), given=("g",)),
        planted=Edit(
            "kernels.linear.channel_gates",
            "load_gates(g_ptr, rows, keys, stride, left, key_dim)\n    dg",
            "load_gates(g_ptr, rows, keys, key_dim, left, key_dim)\n    dg",
        ),
    ),
    "rows_past_the_end": KnownBug(
        happened="Reads out of bounds where T is not a multiple of the chunk.",
        cause="The loop ran to the end of the chunk, whatever the length of the sequence.",
        source="flash-linear-attention bb1f9b9c (673) and 370fe304, KDA",
        pinned=pin("linear_attn", "chunk", SMALL, (5, 7), packed=True),
        planted=Edit(
            "kernels.primitives.rows",
            "(rows[:, None] < num_rows) & (cols[None, :] < num_cols)\n    return",
            "(rows[:, None] >= 0) & (cols[None, :] < num_cols)\n    return",
        ),
    ),
    "scale_in_the_gradient_of_value_gates": KnownBug(
        happened="Wrong dgv.",
        cause="It was computed from the scaled output, of which each program has only its part.",
        source="flash-linear-attention 17d1bc4e (486)",
        pinned=pin("gla", "fused_recurrent", SMALL, (5,), given=("gv",)),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "dgv = tl.sum(before * D, axis=0)",
            "dgv = tl.sum(before * D, axis=0) * scale",
        ),
    ),
    "scores_of_one_value_tile": KnownBug(
        happened="Wrong gradients where V is more than one tile.",
        cause="delta was summed over all of V, dP over one tile.",
        source=(
            "flash-linear-attention e4c7f880 (941) and cff34514 (1042), backward pass of wall_attn"
        ),
        pinned=pin("gla", "chunk", {"B": 1, "H": 1, "K": 5, "V": 33}, (3,), given=("g",)),
        planted=Edit(
            "kernels.linear.chunk",
            "dA += product(do, tl.trans(v), DTYPE, FINE_A=True)",
            "dA = product(do, tl.trans(v), DTYPE, FINE_A=True)",
        ),
    ),
    "sequence_offsets_of_32_bits": KnownBug(
        happened="Reads out of bounds of long packed batches.",
        cause="bos, the first token of a sequence, was an int32.",
        source="flash-linear-attention f3215680 (615), in its convolution",
        pinned=TestAt(
            "properties/suite/test_far_addresses.py::"
            "test_offsets_are_64_bits_wide[gla-fused_recurrent-sequences]"
        ),
        planted=Edit(
            "kernels.primitives.chunks",
            "start = tl.load(cu_seqlens_ptr + sequence)\n",
            "start = tl.load(cu_seqlens_ptr + sequence).to(tl.int32)\n",
        ),
    ),
    "shared_keys_summed_in_their_dtype": KnownBug(
        happened="An infinite gradient of k in float16, where the sum over the heads is finite.",
        cause="Keys were copied for each head by autograd, which adds in the dtype of the keys.",
        source="this project, mamba2 and the grouped delta rules",
        pinned=pin(
            "wall_attn",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 1, "V": 1},
            (15,),
            dtype="float16",
            values="large_values",
            cotangents="large",
        ),
        planted=Edit(
            "kernels.primitives.groups",
            "return x.dtype if x.shape[2] == heads else torch.float32",
            "return x.dtype",
        ),
    ),
    "state_of_an_empty_sequence": KnownBug(
        happened=(
            "The final state of a sequence without tokens is uninitialised; it should be the "
            "initial state."
        ),
        cause="if T == 0: return, before the final state is stored.",
        source="flash-linear-attention, fused_recurrent of KDA, before 0.6.0",
        pinned=pin(
            "gla",
            "fused_recurrent",
            SMALL,
            (3, 0, 2),
            law="written_outputs",
            packed=True,
            given=("initial_state",),
        ),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "    for step in range(length):\n        t =",
            "    if length == 0:\n        return\n    for step in range(length):\n        t =",
        ),
    ),
    "state_summed_in_bfloat16": KnownBug(
        happened="Long sequences drift: what is small beside the state is no longer added to it.",
        cause=(
            "The sum over chunks was rounded to 8 bits at each of them, within every error budget."
        ),
        source="this project, planted to see what the laws miss",
        pinned=pin(
            "linear_attn",
            "chunk",
            {"B": 1, "H": 1, "K": 3, "V": 4},
            (100,),
            law="exactness",
            dtype="bfloat16",
        ),
        planted=Edit(
            "kernels.linear.chunk",
            "            carried += (s,)\n",
            "            carried += (s.to(DTYPE).to(tl.float32),)\n",
        ),
    ),
    "states_in_float16": KnownBug(
        happened=(
            "NaN in training: a state of large values overflows, and loses positive definiteness."
        ),
        cause="The states were stored in the dtype of the inputs.",
        source="flash-linear-attention 1152, issue 1187, mesa_net",
        pinned=pin("linear_attn", "chunk", SMALL, (40,), dtype="float16", values="large_states"),
        planted=Edit(
            "kernels.linear.chunk", "dtype = workspace_dtype(rows.dtype)", "dtype = rows.dtype"
        ),
    ),
    "suffix_sum_as_a_difference": KnownBug(
        happened="Suffix sums lose all digits behind one large gate early in the chunk.",
        cause="The reverse cumsum was computed as total - prefix + x, which cancels.",
        source="flash-linear-attention 3e432dec (1095)",
        pinned=TestAt(
            "kernels/linear/test_recurrence.py::"
            "test_small_gates_behind_large_ones_keep_their_digits[gla-chunk]"
        ),
        planted=Edit(
            "kernels.linear.channel_gates",
            "to_end = decay(chunk_span(1, C), g, DTYPE)",
            "to_end = tl.exp(tl.sum(g, 0) - tl.cumsum(g, 0))",
        ),
    ),
    "token_offsets_of_32_bits": KnownBug(
        happened=(
            "Silent corruption, then an illegal memory access, once a tensor has more than 2^31 "
            "elements."
        ),
        cause="int32 offsets in about a hundred kernels; some were cast after the product.",
        source=(
            "flash-linear-attention 31d15f75 (1082), abfa403d (911), f0e213db (964), f0394d2e "
            "(965), 854c4ce9 (692) and 7a882c3c (733); mamba 1015"
        ),
        pinned=TestAt(
            "properties/suite/test_far_addresses.py::"
            "test_offsets_are_64_bits_wide[gla-fused_recurrent-tokens]"
        ),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "(length - 1 - step if REVERSE else step).to(tl.int64)",
            "length - 1 - step if REVERSE else step",
        ),
    ),
    "update_within_the_gate": KnownBug(
        happened="Without a gate the values never reach the state.",
        cause=(
            "A refactoring moved the update into the branches of g and gk: none where there is no "
            "gate, two where there are both."
        ),
        source="flash-linear-attention f636f5a1, introduced by d1fc1c54",
        pinned=pin("gla", "fused_recurrent", SMALL, (5,)),
        planted=Edit(
            "kernels.linear.fused_recurrent",
            "return S + k[:, None] * v[None, :]",
            "return S + k[:, None] * v[None, :] if USE_G else S",
        ),
    ),
    "values_advance_by_the_key_dim": KnownBug(
        happened="Wrong gradients where K != V and there is more than one chunk.",
        cause="v was addressed with the stride of k.",
        source="flash-linear-attention 1c403c3a (633), backward pass of path_attn",
        pinned=pin("linear_attn", "chunk", SMALL, (40,)),
        planted=Edit(
            "kernels.linear.chunk",
            "y_ptr + start * heads * value_dim",
            "y_ptr + start * heads * key_dim",
        ),
    ),
    "gradient_of_a_step_past_float16": KnownBug(
        happened="dx of mamba2 is infinite in float16, where it is -36339.",
        cause=("The gradient of dt * x was rounded to float16 before it was multiplied by dt."),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "mamba2",
            "chunk",
            {"B": 1, "G": 1, "R": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=6,
        ),
        planted=Edit(
            "kernels.linear.mamba2",
            "step, (x,) = dt.float(), widened(x)",
            "step = dt.float()",
        ),
    ),
    "gradient_of_an_exponential_past_float16": KnownBug(
        happened="dk of lightnet is NaN in float16, where it is 1442.",
        cause=(
            "The gradient of exp(k - z) was rounded to float16, where it is inf, and inf - inf "
            "followed."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "lightnet",
            "chunk",
            {"B": 1, "H": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=5,
        ),
        planted=Edit(
            "kernels.linear.lightnet",
            "q, k, v = widened(q, k, v)",
            "(q,) = widened(q)",
        ),
    ),
    "logarithm_of_a_sum_in_16_bits": KnownBug(
        happened="Weights of lightnet's keys around 256 were off by a factor of two in bfloat16.",
        cause="The logarithm of their sum was rounded to bfloat16 before the difference from them.",
        source="planted by a stranger to this suite, and accepted: the budget let it be rounded",
        pinned=pin(
            "lightnet",
            "chunk",
            {"B": 1, "H": 1, "K": 4, "V": 4},
            (12,),
            dtype="bfloat16",
            values="offset",
            seed=0,
        ),
        planted=Edit(
            "kernels.linear.lightnet",
            "keys = torch.exp(k.float() - weight).to(k.dtype)",
            "keys = torch.exp(k - weight.to(k.dtype))",
        ),
    ),
    "parts_of_a_gate_past_float16": KnownBug(
        happened="di of mlstm is infinite in float16, where it is 21877.",
        cause=(
            "The wrapper reads i twice, and autograd rounded both gradients to float16 before the "
            "sum."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "mlstm",
            "chunk",
            {"B": 1, "H": 1, "K": 5, "V": 5},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=1,
        ),
        planted=Edit(
            "kernels.linear.mlstm",
            "i, g = widened(i, g)",
            "(g,) = widened(g)",
        ),
    ),
    "weight_of_zero_behind_a_large_gate": KnownBug(
        happened="Outputs of mlstm are NaN where queries or the scale are 0 and i is above 104.",
        cause="The weight is 0, and so is exp(-z) in float32: 0 was divided by the larger of them.",
        source="this project, where large input gates were first drawn",
        pinned=pin(
            "mlstm",
            "fused_recurrent",
            {"B": 1, "H": 2, "K": 4, "V": 3},
            (9,),
            options={"scale": 0.0},
            values="large_logits",
            seed=1,
        ),
        planted=Edit(
            "kernels.linear.mlstm",
            'torch.exp(-z.clamp(0, 80))[..., None]\n    if given["scale"] == 0:',
            "torch.exp(-z.clamp(min=0))[..., None]\n    if False:",
        ),
    ),
    "no_gradient_of_the_final_state": KnownBug(
        happened="HGRN in chunks and RWKV-6: nothing flows from the final state, silently.",
        cause="The backward pass did not read the gradient of the final state.",
        source="flash-linear-attention 0.6.0, `gradient_of_the_final_state` of its ledger here",
        pinned=pin("hgrn", "fused_recurrent", {"B": 1, "D": 3}, (5,)),
        planted=Edit(
            "kernels.linear.hgrn",
            "D = tl.load(dfinal_ptr + sequence * dim + cols, mask=inside & use_dfinal, other=0.0)",
            "D = tl.zeros((BD,), dtype=tl.float32)",
        ),
    ),
    "normalizer_of_no_tokens": KnownBug(
        happened="Normalized linear attention without tokens: the state loses its sum of keys.",
        cause="A new sum was made of the keys, of which there were none, and the old one left out.",
        source="flash-linear-attention 0.6.0, `normalizer_of_no_tokens` of its ledger here",
        pinned=pin(
            "linear_attn",
            "chunk",
            {"B": 1, "H": 1, "K": 5, "V": 3},
            (0,),
            given=("initial_state",),
            options={"normalize": True},
        ),
        planted=Edit(
            "kernels.linear.normalize",
            "    return o.to(v.dtype), final_state\n",
            (
                "    if v.shape[1] == 0 and final_state is not None:\n"
                "        final_state = torch.nn.functional.pad(final_state[..., :-1], (0, 1))\n"
                "    return o.to(v.dtype), final_state\n"
            ),
        ),
    ),
    "normalizer_in_float16": KnownBug(
        happened="Normalized linear attention in float16 loses gradients of large sums of keys.",
        cause="The normalizer was kept, and squared, in the dtype of the queries.",
        source="flash-linear-attention 0.6.0, `normalizer_in_float16` of its ledger here",
        pinned=pin(
            "linear_attn",
            "chunk",
            {"B": 1, "H": 1, "K": 24, "V": 1},
            (64,),
            dtype="float16",
            options={"normalize": True},
        ),
        planted=Edit(
            "kernels.linear.normalize",
            "    weights = o[..., -1:]\n",
            "    weights = o[..., -1:].to(v.dtype).square().sqrt().float()\n",
        ),
    ),
    "logarithm_of_no_chunks": KnownBug(
        happened="Log-linear attention without tokens raises an error.",
        cause="The number of levels was the logarithm of the number of chunks, of 0.",
        source="flash-linear-attention 0.6.0, `log_linear_of_no_tokens` of its ledger here",
        pinned=pin(
            "log_linear_attn", "fused_recurrent", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (0,)
        ),
        planted=Edit(
            "kernels.linear.log_linear_chunk",
            "return max(longest - 1, 0).bit_length()",
            'return int(__import__("math").log2(longest) + 1)',
        ),
    ),
    "gate_before_the_sequence": KnownBug(
        happened="Log-linear attention reads out of bounds if the first sequence is empty.",
        cause="The backward pass loads the gate of the last token of a sequence, unmasked.",
        source="flash-linear-attention 0.6.0, `log_linear_empty_sequence` of its ledger here",
        pinned=pin(
            "log_linear_attn",
            "fused_recurrent",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (0, 3),
            packed=True,
            given=("g",),
        ),
        planted=Edit(
            "kernels.linear.log_linear_attn",
            "    segments = tl.cdiv(length, SEGMENT)\n",
            (
                "    segments = tl.cdiv(length, SEGMENT)\n"
                "    if USE_G:\n"
                "        last = load_number(g_ptr, (first + length - 1) * heads + head)\n"
                "        scale += tl.where(last > 0.0, 1e-30, 0.0)\n"
            ),
        ),
        only_on="simulator",
    ),
    "softplus_without_its_digits": KnownBug(
        happened="Steps below exp(-17) decay nothing in the gate of gated delta rules.",
        cause="softplus(x) was log(1 + exp(x)), and 1 + 2^-25 is 1.",
        source="flash-linear-attention 0.6.0, `gate_of_a_small_step` of its ledger here",
        pinned=pin("decay_gate", "fused", {"B": 1, "H": 2, "D": 3}, (5,), values="large_logits"),
        planted=Edit(
            "kernels.gate.decay_gate",
            "    rr = r * r\n",
            "    rr = r * r\n    return tl.maximum(z, 0.0) + tl.log(1.0 + e)\n",
        ),
    ),
    "padding_on_the_heads": KnownBug(
        happened="fused_chunk of GLA with heads after tokens returns garbage.",
        cause="It padded the axis of the heads, as it padded before it transposed.",
        source="flash-linear-attention 1e04390b",
        pinned=pin("rwkv6", "fused_recurrent", {"B": 1, "H": 2, "K": 5, "V": 3}, (4,)),
        planted=Edit(
            "kernels.primitives.shift",
            "late = torch.nn.functional.pad(x[:, :-1], (*nothing, 1, 0))",
            "late = torch.nn.functional.pad(x[:, :, :-1], (*nothing[:-2], 1, 0))",
        ),
    ),
    "writes_past_the_end": KnownBug(
        happened="A write past the end where the number of elements is no multiple of 4096.",
        cause="The kernel, one of elements, had no mask.",
        source="flash-linear-attention ebd4dd27 (1103), channel_mixing of RWKV-7",
        pinned=pin("feature_map", "fused", {"B": 1, "H": 1, "D": 5}, (3,), options={"kind": "elu"}),
        planted=Edit(
            "kernels.linear.feature_maps",
            "f[None, :], y, mask=inside)",
            "f[None, :], y)",
        ),
        only_on="simulator",
    ),
    "slope_without_its_cotangent": KnownBug(
        happened="The gradient of a penalty is not scaled with what is made of the penalty.",
        cause="The backward pass returned the slope and did not multiply by grad_output.",
        source="flash-linear-attention b9bdbcf2 (963), l2warp",
        pinned=pin("feature_map", "fused", {"B": 1, "H": 1, "D": 5}, (3,), options={"kind": "elu"}),
        planted=Edit(
            "kernels.linear.feature_maps",
            "dx = tl.where(x <= 0, dy * tl.exp(tl.minimum(x, 0.0)), dy)",
            "dx = tl.where(x <= 0, tl.exp(tl.minimum(x, 0.0)), 1.0) + 0.0 * dy",
        ),
    ),
    "tuple_of_a_tuple": KnownBug(
        happened="The backward pass of an activation raises an error.",
        cause="It returned one gradient twice, for one input.",
        source="flash-linear-attention 03964a5b (921), GeLUFunction",
        pinned=pin(
            "feature_map", "fused", {"B": 1, "H": 1, "D": 5}, (3,), options={"kind": "relu"}
        ),
        planted=Edit("kernels.linear.feature_maps", "return [dx]", "return [dx, dx]"),
    ),
    "rows_past_the_end_decay": KnownBug(
        happened="Gradients of the selective scan are wrong with a softplus of the steps.",
        cause="Rows past the end were loaded as 0, and a softplus made steps of them.",
        source="mamba issue 368, selective_scan_bwd_kernel",
        pinned=pin("selective_scan", "chunk", {"B": 1, "D": 2, "K": 3}, (5,)),
        planted=Edit(
            "kernels.primitives.decay",
            "g = tl.load(ptr + rows[:, None] * stride + cols[None, :], mask=inside, other=0.0)",
            "g = tl.load(ptr + rows[:, None] * stride + cols[None, :], mask=inside, other=-0.69)",
        ),
    ),
    "slice_of_the_wrong_end": KnownBug(
        happened="The slow path of Mamba-2 has other outputs of its convolution than the fast.",
        cause="Of the padded rows it kept the last, and not the first.",
        source="mamba 580",
        pinned=pin("rwkv4", "fused_recurrent", {"B": 1, "D": 3}, (5,)),
        planted=Edit(
            "kernels.primitives.shift",
            "late = torch.nn.functional.pad(x[:, :-1], (*nothing, 1, 0))",
            "late = torch.nn.functional.pad(x[:, 1:], (*nothing, 1, 0))",
        ),
    ),
    "state_that_is_not_given": KnownBug(
        happened="The state of an earlier request is used by one that has none.",
        cause="has_initial_state was ignored, and the cache read for every sequence.",
        source="vllm-ascend 10558 (review), its convolution",
        pinned=pin("hgrn", "fused_recurrent", {"B": 1, "D": 3}, (5,)),
        planted=Edit(
            "kernels.linear.hgrn",
            "mask=inside & use_initial, other=other)",
            "mask=inside, other=other)",
        ),
        only_on="simulator",
    ),
    "chunks_of_the_call_before": KnownBug(
        happened="Boundaries that are edited in place have no effect on the next call.",
        cause="The chunks of a pack were remembered by the tensor object of its boundaries.",
        source="flash-linear-attention 0.6.0, `boundaries_edited_in_place` of its ledger here",
        pinned=pin(
            "mean_pooling",
            "fused",
            {"B": 1, "H": 1, "D": 3},
            (5, 2),
            law="determinism",
            packed=True,
            earlier={},
            options={"chunk_size": 2},
        ),
        planted=Edit(
            "kernels.sums.mean_pooling",
            "    return (cu_seqlens.diff() + chunk - 1) // chunk\n",
            (
                "    counts = (cu_seqlens.diff() + chunk - 1) // chunk\n"
                "    return vars(cu_seqlens).setdefault(str(chunk), counts)\n"
            ),
        ),
    ),
    "empty_sequence_takes_the_token_before": KnownBug(
        happened="Packed normalized linear attention: the state of an empty sequence is wrong.",
        cause="The last token of a sequence was read at its end less 1, of its neighbour if empty.",
        source="flash-linear-attention, normalizer of linear attention, before 0.6.0",
        pinned=pin(
            "rwkv6",
            "chunk",
            {"B": 1, "H": 1, "K": 5, "V": 3},
            (3, 0, 2),
            packed=True,
            given=("initial_state",),
        ),
        planted=Edit(
            "kernels.primitives.shift",
            "torch.where(empty.view(-1, *[1] * (x.dim() - 1)), 0.0, x) for x in found], empty",
            "x for x in found], torch.zeros_like(empty)",
        ),
    ),
    "series_of_an_exponential_beyond_its_range": KnownBug(
        happened="Gates of 1 and more cost the state digits: 3.7e-3 of it at 3.",
        cause="exp(g) - 1 was a series, cut after g^8, for all g above -1/2 instead of near 0.",
        source="Kernels of this repository, found by a reader of the docstrings",
        pinned=pin(
            "simple_gla",
            "fused_recurrent",
            {"B": 1, "H": 2, "K": 4, "V": 3},
            (4,),
            given=("g",),
            values="growing_gates",
            seed=2,
        ),
        planted=Edit(
            "kernels.primitives.decay",
            "tl.where(tl.abs(g) < 0.5, S",
            "tl.where(g > -0.5, S",
        ),
    ),
    "sum_in_the_order_of_a_gradients_strides": KnownBug(
        happened="Compiled, the gradient of u has other bits where that of o is transposed.",
        cause="PyTorch summed over tokens in the order of strides, which a compiler changes.",
        source="Kernels of this repository, found by `context_invariance` with random cases",
        pinned=pin(
            "rwkv4",
            "fused_recurrent",
            {"B": 1, "D": 129},
            (15,),
            law="context_invariance",
            context="compiled",
            layouts={"do": "heads_first"},
        ),
        planted=Edit("kernels.primitives.layout", "return x.flatten().view(x.shape)", "return x"),
    ),
}
