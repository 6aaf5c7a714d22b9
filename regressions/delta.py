"""Bugs of delta rules."""

from properties.planting.edit import Edit
from regressions.known_bug import KnownBug, pin

BUGS = {
    "anchor_by_the_length": KnownBug(
        happened=(
            "Outputs and gradients of a prefix change with a later gate: KDA with safe_gate and a "
            "last sub-chunk that is not full, T = 22 for example."
        ),
        cause=(
            "The anchor of the exponents was row min(BC // 2, T - i - 1) of the sub-chunk, so it "
            "depended on later rows and on the length."
        ),
        source="flash-linear-attention issue 1240",
        pinned=pin(
            "kda",
            "chunk",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (22,),
            law="causality",
            given=("g",),
            seed=1,
        ),
        planted=Edit(
            "kernels.linear.channel_gates",
            "X = x * decayed\n",
            (
                "X = x * decayed\n"
                "            before = rows[:, None] <= tl.minimum(C // 2, left - 1)\n"
                "            anchor = tl.sum(tl.where(before, g.to(tl.float32), 0.0), 0)[None, :]\n"
                "            X *= tl.exp(tl.where(readers, anchor, -anchor))\n"
            ),
        ),
    ),
    "chunk_length_written_out": KnownBug(
        happened="Wrong gradients of KDA with any chunk_size but 64.",
        cause="BT = 64, written out in the backward pass.",
        source="flash-linear-attention 769035e9 (876) and 424b3330 (935)",
        pinned=pin("kda", "chunk", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (37,), given=("g",)),
        planted=Edit(
            "kernels.delta.chunk",
            '**self._launch("system_backward"),',
            '**(self._launch("system_backward") | {"C": 32, "LEVELS": 5}),',
        ),
    ),
    "final_states_of_the_batch": KnownBug(
        happened="The final state of packed sequences too small, and heap corruption.",
        cause="new_empty(B, ...) where it should be N.",
        source="flash-linear-attention, fused_recurrent of the IPLR delta rule, before 0.6.0",
        pinned=pin(
            "dplr", "fused_recurrent", {"B": 1, "H": 1, "K": 5, "V": 3}, (3, 2), packed=True
        ),
        planted=Edit(
            "kernels.delta.fused_recurrent",
            "final_state = v.new_empty(sequences,",
            "final_state = v.new_empty(batch,",
        ),
    ),
    "gates_one_head_apart": KnownBug(
        happened="A stabiliser of the wrong row, and a risk of overflow, with more than one head.",
        cause="The stride from row to row was K instead of H·K.",
        source="flash-linear-attention 40334f1c (1085), DPLR with safe_gate",
        pinned=pin("dplr", "chunk", {"B": 1, "H": 2, "K": 5, "V": 3}, (5,), given=("gk",)),
        planted=Edit(
            "kernels.linear.channel_gates",
            "load_gates(g_ptr, rows, keys, stride, left, key_dim)\n        q",
            "load_gates(g_ptr, rows, keys, key_dim, left, key_dim)\n        q",
        ),
    ),
    "gates_past_the_key_dim": KnownBug(
        happened="NaN or garbage in o and in the final state for a head dim of 60 or 100.",
        cause="The loads of the gates had no mask, and a tile is as wide as the next power of two.",
        source="flash-linear-attention 1171 (gated delta rule); issue 1134, b67113b4 (1135) (KDA)",
        pinned=pin(
            "kda", "fused_recurrent", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (3,), given=("g",)
        ),
        planted=Edit(
            "kernels.delta.fused_recurrent",
            "load_row(g_ptr, row, key_dim, keys, in_k)",
            "load_row(g_ptr, row, key_dim, keys, keys >= 0)",
        ),
        only_on="simulator",
    ),
    "gradients_without_a_gate": KnownBug(
        happened="Garbage in dk and dbeta of the gated delta rule where there is no gate.",
        cause="What belongs into the else of USE_G was not there.",
        source="flash-linear-attention 23da0a15 (863), issue 862, prepare_wy_repr_bwd",
        pinned=pin("gated_delta_rule", "chunk", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (5,)),
        planted=Edit(
            "kernels.delta.chunk", "            dk = product(tl.trans(dA), e, DTYPE, acc=dk)\n", ""
        ),
    ),
    "group_of_another_head": KnownBug(
        happened="Wrong gradients where there are fewer heads of keys than heads.",
        cause="The backward pass took the head from a number of heads that was not the one meant.",
        source="flash-linear-attention 7c730eb5, chunk_bwd_dh",
        pinned=pin("gated_delta_rule", "chunk", {"B": 1, "G": 2, "R": 2, "K": 5, "V": 3}, (5,)),
        planted=Edit(
            "kernels.primitives.groups",
            "dx.unflatten(2, (groups, -1)).sum(3)",
            "dx.unflatten(2, (-1, groups)).sum(2)",
        ),
    ),
    "one_reader_is_not_normalized": KnownBug(
        happened="Generation with use_qk_l2norm_in_kernel goes wrong.",
        cause=(
            "Queries and keys were normalized, and p, which Comba reads the state with before it "
            "writes, was not. Here the keys read it."
        ),
        source="flash-linear-attention cde25dfd (483), fused_recurrent of Comba",
        pinned=pin(
            "delta_rule",
            "fused_recurrent",
            {"B": 1, "H": 1, "K": 5, "V": 3},
            (5,),
            values="long_keys",
            options={"use_qk_l2norm_in_kernel": True},
        ),
        planted=Edit(
            "kernels.delta.keys",
            "(normalized(q), normalized(k)) if use",
            "(normalized(q), k) if use",
        ),
    ),
    "one_token_is_taken_for_decoding": KnownBug(
        happened=(
            "Reads and writes out of bounds, a crash, for a single token packed beside an empty "
            "sequence."
        ),
        cause="IS_DECODE = (T == 1) looked at the tokens of the batch and not at cu_seqlens.",
        source="flash-linear-attention, fused_mul_recurrent_rwkv7, before 0.6.0",
        pinned=pin(
            "rwkv7",
            "fused_recurrent",
            {"B": 1, "H": 1, "K": 5, "V": 3},
            (0, 1),
            packed=True,
            given=("initial_state",),
        ),
        planted=Edit(
            "kernels.delta.fused_recurrent",
            (
                "o, *optional(final_state, q),\n"
                "        scale, tokens, heads, key_dim, value_dim,\n"
                "        **blocks, **gate_flags(g), DPLR=a is not None,\n"
                "        PACKED=cu_seqlens is not None,"
            ),
            (
                "o, *optional(final_state, q),\n"
                "        scale, tokens, heads, key_dim, value_dim,\n"
                "        **blocks, **gate_flags(g), DPLR=a is not None,\n"
                "        PACKED=cu_seqlens is not None and tokens > 1,"
            ),
        ),
    ),
    "state_of_an_empty_sequence": KnownBug(
        happened="It is uninitialised; it should be the initial state.",
        cause="if T == 0: return, before the final state is stored.",
        source="flash-linear-attention, fused_recurrent of KDA, before 0.6.0",
        pinned=pin(
            "kda",
            "fused_recurrent",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (3, 0, 2),
            law="written_outputs",
            packed=True,
            given=("initial_state",),
        ),
        planted=Edit(
            "kernels.delta.fused_recurrent",
            "    for t in range(length):\n        row =",
            "    if length == 0:\n        return\n    for t in range(length):\n        row =",
        ),
    ),
    "unit_keys_past_float16": KnownBug(
        happened="NaN gradients of long queries and keys in float16, with large cotangents.",
        cause=(
            "The gradient of a unit key was rounded to float16, and overflowed where that of the "
            "key, which is divided by its length, does not."
        ),
        source="this project, found when cotangents near the range of float16 were first drawn",
        pinned=pin(
            "gated_delta_rule",
            "chunk",
            {"B": 1, "G": 2, "R": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            options={"use_qk_l2norm_in_kernel": True, "scale": 2.0},
            cotangents="large",
            frozen=("k", "v"),
        ),
        planted=Edit(
            "kernels.delta.keys",
            'given["keys_dtype"] = torch.float32',
            'given["keys_dtype"] = q.dtype',
        ),
    ),
    "update_within_the_gate": KnownBug(
        happened="Without a gate the values never reach the state of the gated delta rule.",
        cause=(
            "A refactoring moved the update into the branches of g and gk: none where there is no "
            "gate, two where there are both."
        ),
        source="flash-linear-attention f636f5a1, introduced by d1fc1c54",
        pinned=pin(
            "gated_delta_rule", "fused_recurrent", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (5,)
        ),
        planted=Edit(
            "kernels.delta.fused_recurrent",
            "        S = decayed + k[:, None] * u[None, :]\n",
            (
                "        S = decayed\n"
                "        if USE_G or USE_HEAD_G:\n"
                "            S += k[:, None] * u[None, :]\n"
            ),
        ),
    ),
    "parts_of_a_gradient_past_float16": KnownBug(
        happened="dk of comba is infinite in float16, where it is -40170.",
        cause=(
            "The wrapper takes k twice, as key and as -beta k. autograd rounded the "
            "gradient of each to float16 before it summed them, and one overflowed."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "comba",
            "fused_recurrent",
            {"B": 1, "G": 1, "R": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=6,
            given=("beta", "g"),
        ),
        planted=Edit(
            "kernels.delta.comba",
            "q, k, v, p, g, beta = widened(q, k, v, p, g, beta)",
            "(g,) = widened(g)",
        ),
    ),
    "gradient_of_an_erased_key_past_float16": KnownBug(
        happened="dk of gdn2 is infinite in float16, where it is -57290.",
        cause=(
            "The gradient of exp(g) * k was rounded to float16 before it was multiplied by exp(g)."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "gdn2",
            "chunk",
            {"B": 1, "H": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=6,
            given=("g",),
        ),
        planted=Edit(
            "kernels.delta.gdn2",
            "q, k, v, g = widened(q, k, v, g)",
            "(g,) = widened(g)",
        ),
    ),
    "gradient_of_an_operand_past_float16": KnownBug(
        happened="dkk of rwkv7 is infinite in float16, where it is -40188.",
        cause=(
            "The kernel stored the gradient of a * kk in float16, although the wrapper had "
            "passed the product in float32."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "rwkv7",
            "fused_recurrent",
            {"B": 1, "H": 1, "K": 16, "V": 16},
            (9,),
            dtype="float16",
            cotangents="large",
            seed=4,
        ),
        planted=Edit(
            "kernels.passes",
            'wide = dict.fromkeys(("keys_dtype", "values_dtype"), torch.float32)',
            "wide = {}",
        ),
    ),
    "difference_of_two_sums_of_gates": KnownBug(
        happened="Behind a strong gate of its chunk a decay of 0.99 becomes 1.",
        cause="It was the difference of two float32 sums that begin with the chunk.",
        source=(
            "flash-linear-attention 0.6.0, `gated_delta_rule_gates_of_a_chunk` of its ledger here"
        ),
        pinned=pin(
            "gated_delta_rule",
            "chunk",
            {"B": 2, "G": 1, "R": 1, "K": 7, "V": 8},
            (47,),
            given=("g", "initial_state"),
            values="extreme_gates",
        ),
        planted=Edit(
            "kernels.delta.chunk",
            "overlaps *= pair_decay(0, load_head_gates(g_ptr, rows, heads, left), C, DTYPE)",
            (
                "sums = tl.cumsum(load_head_gates(g_ptr, rows, heads, left).to(tl.float32), 0)\n"
                "        overlaps *= tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0))"
            ),
        ),
    ),
    "norm_not_differentiated": KnownBug(
        happened="Titans with a layer norm: gradients of the loss are those of another function.",
        cause="Of the three terms behind the norm, the first was not divided by the deviation.",
        source="flash-linear-attention 0.6.0, chunk_titans_linear",
        pinned=pin("ttt_linear", "fused_chunk", {"B": 1, "H": 1, "K": 5}, (5,)),
        planted=Edit(
            "kernels.delta.ttt_linear",
            "dx = (dn - _mean(dn, dim) - n * _mean(dn * n, dim)) * inverse",
            "dx = dn - (_mean(dn, dim) + n * _mean(dn * n, dim)) * inverse",
        ),
    ),
}
