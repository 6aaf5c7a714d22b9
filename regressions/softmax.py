"""Bugs of softmax attention."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug, pin

SMALL = {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}
PAGED = {"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4}
WINDOW = pin("attention", "parallel", SMALL, (7,), options={"causal": True, "window": 3})
TWO_BLOCKS = pin("attention", "parallel", SMALL, (40,), tile=7)
CAUSAL = pin("attention", "parallel", SMALL, (7,), options={"causal": True})
PAGES = pin("paged_attention", "fused", PAGED, (1,), seed=3, options={"causal": True})
WIDER_VALUES = pin("attention", "parallel", {"B": 1, "G": 1, "R": 1, "K": 3, "V": 5}, (7,))
HEADS_FIRST = pin(
    "attention", "parallel", {"B": 1, "G": 2, "R": 1, "K": 5, "V": 3}, (7,), layout="heads_first"
)
ROWS_WITHOUT_KEYS = pin(
    "attention", "parallel", SMALL, (7,), key_lengths=(3,), options={"causal": True}
)
FULL = pin("attention", "parallel", SMALL, (7,))
SINK = pin("attention", "parallel", {"B": 1, "G": 1, "R": 3, "K": 5, "V": 3}, (7,), given=("sink",))
MANY_KEYS = pin("paged_attention", "fused", PAGED | {"C": 64}, (3,), seed=11)
QUANTIZED = pin(
    "paged_attention",
    "fused",
    PAGED,
    (1,),
    given=("k_scale", "v_scale"),
    seed=3,
    options={"causal": True},
)

BUGS = {
    "arguments_shifted_by_one": KnownBug(
        happened="Wrong bounds of the keys on one path of the kernel.",
        cause=(
            "A new parameter was not threaded through one of the call sites, which shifted "
            "the rest."
        ),
        source="flash-attention 1582 (commit 7ff73af4)",
        pinned=WINDOW,
        planted=Edit(
            "kernels.softmax.forward",
            "keys_of(first, last, shift, length_k, window,",
            "keys_of(first, last, shift, window, length_k,",
        ),
    ),
    "blocks_counted_by_sequences": KnownBug(
        happened="A buffer of the wrong size where a sequence is longer than a block.",
        cause="num_blocks was the number of sequences.",
        source="flash-linear-attention 6b7df989, path_attn",
        pinned=TWO_BLOCKS,
        planted=Edit(
            "kernels.softmax.attention",
            "count = cdiv(longest, tile.tokens)\n        attention_forward",
            "count = self.sequences\n        attention_forward",
        ),
    ),
    "boundaries_ignored": KnownBug(
        happened="Attention across samples, and wrong log-probabilities, for packed rows.",
        cause="The backend was given no mask, and ignored cu_seqlens.",
        source="AReaL 1442; maxtext 4476",
        pinned=pin("attention", "parallel", SMALL, (5, 7), packed=True),
        planted=Edit(
            "kernels.softmax.attention",
            "g=g, cu_seqlens=cu_seqlens,\n        cu_seqlens_k=cu_seqlens_k, bias=bias",
            "g=g, cu_seqlens=None,\n        cu_seqlens_k=None, bias=bias",
        ),
    ),
    "boundaries_past_the_keys": KnownBug(
        happened="A mask made for more keys than there are reads past the end of K and V.",
        cause="Nothing compared the two lengths.",
        source="xformers 1122",
        pinned=pin(
            "attention", "parallel", SMALL, (5, 7), law="rejection", key_lengths=(6, 3), packed=True
        ),
        planted=Edit(
            "kernels.softmax.attention",
            '    arguments.check_boundaries("cu_seqlens_k", self.cu_seqlens_k, keys)\n        o =',
            "    o =",
        ),
    ),
    "causal_from_the_top_left": KnownBug(
        happened=(
            "Decoding with a cache attends to the first key alone: is_causal=True where there are "
            "more keys than queries."
        ),
        cause="The diagonal started at the first key instead of ending at the last.",
        source="PyTorch 103082, 108108 and 110144; gpt-neox 1178",
        pinned=pin(
            "attention", "parallel", SMALL, (1,), key_lengths=(5,), options={"causal": True}
        ),
        planted=Edit(
            "kernels.softmax.forward", "shift = length_k - length_q", "shift = 0 * length_k"
        ),
    ),
    "causal_only_beside_a_mask": KnownBug(
        happened="causal=True without a mask is not causal.",
        cause="The branch was taken only if a mask was given.",
        source="xformers 103",
        pinned=CAUSAL,
        planted=Edit(
            "kernels.softmax.attention",
            '"CAUSAL": self.causal,',
            '"CAUSAL": self.causal and self.window is not None,',
        ),
    ),
    "contiguous_do": KnownBug(
        happened="Wrong gradients where the incoming gradient is not contiguous.",
        cause="The kernel computed the addresses of do from its shape.",
        source="flash-attention, commit 88c4e5db",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 2, "G": 1, "R": 2, "K": 5, "V": 3},
            (7,),
            layout="heads_first",
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "outer_strides(self.q, self.k, self.v, self.do)",
            "outer_strides(self.q, self.k, self.v, self.do.contiguous())",
        ),
    ),
    "saved_tensors_read_twice": KnownBug(
        happened="Training attention under `torch.utils.checkpoint` raises CheckpointError.",
        cause="The backward pass reads `ctx.saved_tensors` for each tensor, and a checkpoint gives "
        "them once.",
        source="this project, where calls were first run again for their backward pass",
        pinned=pin("attention", "parallel", SMALL, (7,), context="checkpointed"),
        planted=Edit(
            "kernels.differentiable",
            "inputs, held = stored[: len(tensors)], stored[len(tensors) :]",
            "inputs, held = ctx.saved_tensors[: len(tensors)], stored[len(tensors) :]",
        ),
    ),
    "cube_of_a_length_underflows": KnownBug(
        happened="Wrong gradients of attention residuals whose sources are about 1e14 long.",
        cause="1 / length³ in float32.",
        source="this project, where rows of any size were first drawn",
        pinned=pin(
            "attnres",
            "fused",
            {"B": 1, "D": 5, "L": 7},
            (1,),
            given=("output_weight",),
            options={"scale": None, "return_weights": False},
            values="wide_range",
        ),
        planted=Edit(
            "kernels.softmax.attnres",
            "step * (c[None, :] - _pick(along, source) * x)",
            "step * c[None, :] - _pick(step * inverse * inverse * products / dim, source) * x",
        ),
    ),
    "decays_cut_at_a_least_one": KnownBug(
        happened="Keys behind strong gates of wall attention count for what they should not.",
        cause="The exponent of a decay was cut at some least number.",
        source="flash-linear-attention 0.6.0, `wall_keys_behind_strong_gates` of its ledger here",
        pinned=pin(
            "wall_attn",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (150,),
            values="strong_gates",
        ),
        planted=Edit(
            "kernels.softmax.wall_walk",
            "tl.load(passed + keys, mask=keys < key_dim, other=0.0)",
            "tl.maximum(tl.load(passed + keys, mask=keys < key_dim, other=0.0), 0.01)",
        ),
    ),
    "decoding_sees_the_first_key": KnownBug(
        happened="Decoding with a cache attended to the first key only.",
        cause="The causal diagonal began at the first key, wherever the queries are.",
        source="PyTorch 103082, 108108, 110144; gpt-neox 1178",
        pinned=PAGES,
        planted=Edit(
            "kernels.softmax.paged_forward", "shift = length_k - length_q", "shift = length_k * 0"
        ),
    ),
    "do_bounded_by_the_key_dim": KnownBug(
        happened="dq silently wrong where qk_head_dim < v_head_dim.",
        cause="The block pointers of V and dO were bounded by qk_head_dim.",
        source="native-sparse-attention-triton 27 (defect 2)",
        pinned=WIDER_VALUES,
        planted=Edit(
            "kernels.softmax.backward",
            "do_tile = load_tile(do, stride_ot, first, rows, length_q, in_v,",
            (
                "do_tile = load_tile(\n"
                "        do, stride_ot, first, rows, length_q, tl.arange(0, PAD_V) < key_dim,"
            ),
        ),
    ),
    "dv_in_the_layout_of_its_input": KnownBug(
        happened="dv wrong, or refused, where k and v do not lie in memory alike.",
        cause="empty_like copies the strides of a tensor; the kernel was told others.",
        source="flash-attention, report 818 (commit 2423cca3) and commit d9a5cb29",
        pinned=HEADS_FIRST,
        planted=Edit(
            "kernels.softmax.attention",
            "dv = o.new_empty(batch, keys, kv_heads, value_dim)",
            "dv = torch.empty_like(self.v)",
        ),
    ),
    "early_return_without_zeros": KnownBug(
        happened=(
            "Reads out of bounds for a block of keys after the last query; once that returned "
            "early, garbage in its dk and dv."
        ),
        cause=(
            "The loop's first loads came before the test whether there is a turn of it. A "
            "return in "
            "their place has to write zeros."
        ),
        source="flash-attention, commit 6998e0ec",
        pinned=pin(
            "attention",
            "parallel",
            SMALL,
            (3,),
            law="written_outputs",
            key_lengths=(40,),
            tile=7,
            options={"causal": True, "window": 4},
        ),
        planted=Edit(
            "kernels.softmax.backward",
            "    for member in tl.range(group",
            "    if bounds[0] == high:\n        return\n    for member in tl.range(group",
        ),
    ),
    "empty_row_averages": KnownBug(
        happened=(
            "A row whose mask is all finfo.min is the mean of V on one device and NaN on another; "
            "the next layer spreads it."
        ),
        cause=(
            "Masked logits are a finite number: where there is nothing else, the softmax is "
            "uniform."
        ),
        source="PyTorch 109517 and 110213",
        pinned=ROWS_WITHOUT_KEYS,
        planted=Edit(
            "kernels.softmax.logits",
            "p = tl.where(visible, p, 0.0)",
            'p = tl.where(visible, p, tl.where(new_max == float("-inf"), 1.0, 0.0)[:, None])',
        ),
    ),
    "empty_splits_combined": KnownBug(
        happened="NaN in o and LSE of a sequence without keys once its splits are combined.",
        cause="The maximum over all splits is -inf, and -inf - -inf is NaN.",
        source="flash-attention, commit 26d7d92f",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED,
            (1,),
            seed=22,
            options={"causal": True, "num_splits": 3},
        ),
        planted=Edit(
            "kernels.softmax.paged_forward",
            (
                "base = finite_maximum(new_max)\n"
                "        shrink = tl.exp2(row_max - base)\n        weight"
            ),
            "base = new_max\n        shrink = tl.exp2(row_max - base)\n        weight",
        ),
    ),
    "exponential_before_the_mask": KnownBug(
        happened="NaN gradients in the first iteration of training in bfloat16.",
        cause=(
            "exp of differences of cumulative sums that are positive above the diagonal overflows "
            "before the mask is applied: Inf·0 is NaN."
        ),
        source="mamba 352, 353, 354 and 558 (as users found it)",
        pinned=pin(
            "attention",
            "parallel",
            SMALL,
            (17,),
            given=("g",),
            values="extreme_gates",
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.backward",
            "p = tl.where(visible, p, 0.0)",
            "p *= visible.to(tl.float32)",
        ),
    ),
    "finite_lse_of_an_empty_row": KnownBug(
        happened="lse = -49993.98 for rows without keys; parts merged by it are corrupt.",
        cause="Masked logits got a large finite number, which leaked into the lse.",
        source="flashinfer 4452; vLLM 49294",
        pinned=ROWS_WITHOUT_KEYS,
        planted=Edit(
            "kernels.softmax.forward",
            "(row_max + tl.log2(weight_sum)) * LN2",
            "tl.maximum(row_max + tl.log2(weight_sum), -72127.0) * LN2",
        ),
    ),
    "gates_past_the_end": KnownBug(
        happened="Gradients of PaTH attention with gates are NaN.",
        cause="The logits of rows past the end are infinite, and 0 times them is added.",
        source="flash-linear-attention 0.6.0, `path_scale_below_zero` of its ledger here",
        pinned=pin(
            "path_attn",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
            (35,),
            given=("g",),
            values="extreme_gates",
            seed=1,
        ),
        planted=Edit(
            "kernels.softmax.path_walk_backward",
            "tl.where(exists[:, None], tl.exp2(s) * inverse[:, None], 0.0)",
            "tl.exp2(s) * inverse[:, None]",
        ),
    ),
    "gates_read_past_the_end": KnownBug(
        happened=(
            "Illegal memory access for a score_mod that reads a tensor, where seqlen_q is not a "
            "multiple of the tile."
        ),
        cause=(
            "The function was evaluated at indices out of bounds as well; only its result was "
            "masked."
        ),
        source="flash-attention 2020 and 2091 (bba578d4, 052015a4)",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 5, "V": 3},
            (7,),
            given=("g",),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.logits",
            "leading = tl.load(gate + tokens, mask=inside, other=0.0)",
            "leading = tl.load(gate + tokens)",
        ),
        only_on="simulator",
    ),
    "global_index_local_length": KnownBug(
        happened="Rows past 65536 are not computed.",
        cause="The mask compared a global index with a local length.",
        source="flash-linear-attention 5aea42b7 (907), gate_output_correction of RWKV-7",
        pinned=pin(
            "attention",
            "parallel",
            SMALL,
            (5, 7),
            packed=True,
            given=("g",),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.gates", "inside = t < length\n", "inside = start + t < length\n"
        ),
    ),
    "gradient_summed_in_bfloat16": KnownBug(
        happened="A noisy gradient of the weight where it is the sum of many chunks.",
        cause="It was accumulated in bfloat16.",
        source="flash-linear-attention 794f183c (874), in its fused linear losses",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 16, "V": 16},
            (64,),
            dtype="bfloat16",
            key_lengths=(400,),
            tile=7,
            values="one_hot_values",
        ),
        planted=Edit(
            "kernels.softmax.backward",
            'acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")',
            (
                'acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")\n'
                "            acc = acc.to(k_tile.dtype).to(tl.float32)"
            ),
        ),
    ),
    "infinite_lse_of_an_empty_row": KnownBug(
        happened="Prefill in chunks went wrong on A100: a part without keys got all of the weight.",
        cause=(
            "One version of the kernel returns +inf for such a row, another -inf, and the merge "
            "expected -inf."
        ),
        source="vLLM 15492",
        pinned=ROWS_WITHOUT_KEYS,
        planted=Edit(
            "kernels.softmax.forward",
            "(row_max + tl.log2(weight_sum)) * LN2",
            "tl.where(weight_sum == 0.0, -1.0, 1.0) * (row_max + tl.log2(weight_sum)) * LN2",
        ),
    ),
    "kv_head_by_modulo": KnownBug(
        happened="The wrong kv head, and no crash, wherever Hq / Hkv > 1.",
        cause=(
            "tile where it should be repeat_interleave: query head h reads kv head h // (Hq / Hkv)."
        ),
        source="mamba 462; onnx 7274; axlearn 842; jax-js 180",
        pinned=pin("attention", "parallel", {"B": 1, "G": 2, "R": 2, "K": 5, "V": 3}, (7,)),
        planted=Edit(
            "kernels.softmax.forward",
            "kv_head = (head // group)",
            "kv_head = (head % (heads // group))",
        ),
    ),
    "kv_heads_counted_by_their_group": KnownBug(
        happened=(
            "dk and dv are garbage or NaN where the number of kv heads is not the size of a group."
        ),
        cause="% and // by the share count instead of Hkv, so that some slots were never written.",
        source="native-sparse-attention-triton 27 (defect 1)",
        pinned=pin("attention", "parallel", {"B": 1, "G": 3, "R": 2, "K": 5, "V": 3}, (7,)),
        planted=Edit(
            "kernels.softmax.backward",
            "kv_head = (tl.program_id(0) // tiles % kv_heads)",
            "kv_head = (tl.program_id(0) // tiles % group)",
        ),
    ),
    "loop_bound_of_another_mask": KnownBug(
        happened=(
            "Allowed keys missed: a custom mask that exposes later tiles, beside is_causal=True."
        ),
        cause="The loop over the keys still ended at the diagonal.",
        source="SGLang 39593",
        pinned=pin("attention", "parallel", SMALL, (40,), tile=7, options={"window": 30}),
        planted=Edit(
            "kernels.softmax.logits",
            "high = tl.minimum(high, last + shift + window)",
            "high = tl.minimum(high, last + shift + 1)",
        ),
    ),
    "lse_in_base_two": KnownBug(
        happened=(
            "12 % of error from the merge of two parts; the newest tokens get a fifth of their "
            "weight."
        ),
        cause="One backend returns log2, the kernel that merges expects the natural logarithm.",
        source="SGLang 35045 and 40903",
        pinned=FULL,
        planted=Edit(
            "kernels.softmax.forward",
            "(row_max + tl.log2(weight_sum)) * LN2",
            "row_max + tl.log2(weight_sum)",
        ),
    ),
    "splits_of_packed_queries": KnownBug(
        happened="Wrong outputs of paged attention to packed queries with more than one split.",
        cause="The combining kernel wrote rows in the layout of a batch of equal lengths.",
        source="flash-attention 1217, refused since 2550 (9bad4bec)",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED,
            (1, 3),
            packed=True,
            seed=3,
            options={"causal": True, "num_splits": 2},
        ),
        planted=Edit(
            "kernels.softmax.paged",
            "parts, row_maxima, weight_sums, o, lse, rows, queries, num_splits, heads,",
            "parts, row_maxima, weight_sums, o, lse, rows, longest, num_splits, heads,",
        ),
    ),
    "strides_of_parts_from_shapes": KnownBug(
        happened="Wrong LSE of the splits, once their buffer was allocated otherwise.",
        cause="The kernel computed the strides of the parts from shapes.",
        source="flash-attention 2388 (commit 28ef22c9)",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED | {"B": 2},
            (3,),
            seed=3,
            options={"causal": True, "num_splits": 2},
        ),
        planted=Edit(
            "kernels.softmax.paged",
            "kv_heads, group, size, rows, key_dim,",
            "kv_heads, group, size, queries * heads, key_dim,",
        ),
    ),
    "lse_of_splits_permuted": KnownBug(
        happened="The LSE came back permuted for grouped heads with several splits.",
        cause="The combining kernel wrote it in another layout than the rest expected.",
        source="vLLM's flash-attention 87",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED,
            (3,),
            seed=3,
            options={"causal": True, "num_splits": 2},
        ),
        planted=Edit(
            "kernels.softmax.paged_forward",
            "to = (token // tokens * heads + head) * tokens + token % tokens",
            "to = rows",
        ),
    ),
    "merge_of_cascades_without_keys": KnownBug(
        happened="NaN in o and LSE when both states that are merged are empty.",
        cause="exp2(lse_a - max) is exp2(-inf - -inf).",
        source="flashinfer 4051, 5262",
        pinned=pin("merge_attention", "fused", {"B": 1, "H": 3, "V": 5}, (7,), values="empty_rows"),
        planted=Edit(
            "kernels.softmax.merge", "finite_maximum(tl.maximum(a, b))", "tl.maximum(a, b)"
        ),
    ),
    "merge_of_two_empty_parts": KnownBug(
        happened=(
            "NaN in o and in the lse of a row whose keys are all masked, once the parts of its "
            "softmax are combined."
        ),
        cause="exp(lse_1 - lse) of two parts without a key is exp(-inf - -inf).",
        source=(
            "flash-attention, commit 26d7d92f; flashinfer 4051 and 5262; vLLM 27491, 28181 and "
            "39148"
        ),
        pinned=pin(
            "attention", "parallel", SMALL, (20,), key_lengths=(3,), options={"causal": True}
        ),
        planted=Edit(
            "kernels.softmax.logits",
            "finite_maximum(new_max)",
            "new_max",
        ),
    ),
    "narrow_operands_on_hopper": KnownBug(
        happened=(
            "Attention with value heads of 16 or less, in 16 bits on an H200: wrong outputs that "
            "change from call to call, or an illegal memory access. compute-sanitizer: an "
            "invalid read of "
            "shared memory in tl.dot. The simulator and smaller tiles are right."
        ),
        cause=(
            "Triton 3.6 addresses a transposed operand of a warp-group product wrongly if its rows "
            "are shorter than 128 bytes. Seen in three kernels; rows of 64 elements are right "
            "in all."
        ),
        source="found by python -m properties.fuzz --device cuda (H200, torch 2.11, Triton 3.6.0)",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 64, "V": 16},
            (70, 133),
            dtype="bfloat16",
            packed=True,
            layout="sliced",
            seed=202,
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.tiles",
            "return 64 if itemsize == 2 and self.tokens >= 64 and self.num_warps >= 4 else 16",
            "return 16",
        ),
        only_on="cuda",
    ),
    "no_gradient_of_the_sink": KnownBug(
        happened="A learnable sink did not learn: its gradient was missing.",
        cause="The backward pass knew nothing of the sink.",
        source="flash-attention 1973 and 2102, fixed by 2706",
        pinned=SINK,
        planted=Edit(
            "kernels.softmax.attention",
            "sink_gradient(self.sink, softmax, terms[..., 2])",
            "torch.zeros_like(self.sink)",
        ),
    ),
    "no_gradient_through_the_lse": KnownBug(
        happened="Gradients of q, k and the sink wrong for a loss that reads the lse as well.",
        cause="delta is Σ do·o - dlse; the second term was forgotten.",
        source="flash-attention 2706 (review)",
        pinned=FULL,
        planted=Edit(
            "kernels.softmax.backward",
            "tl.sum(o_tile * do_tile, 1) - from_lse",
            "tl.sum(o_tile * do_tile, 1)",
        ),
    ),
    "options_of_the_call_before": KnownBug(
        happened=(
            "A wrapper planned with a custom mask, then with causal=True, goes on with the mask."
        ),
        cause="What was planned once was not reset.",
        source="flashinfer 1028; flash-attention, commit 1a58058a",
        pinned=pin("attention", "parallel", SMALL, (7,), law="plumbing", options={"causal": True}),
        planted=Edit(
            "kernels.softmax.attention",
            '"CAUSAL": self.causal,',
            '"CAUSAL": vars(_steps).setdefault("causal", self.causal),',
        ),
    ),
    "oracle_places_alibi_at_the_top_left": KnownBug(
        happened="The reference of ALiBi with a left-padded cache was wrong, not the kernel.",
        cause="Its bias used the column, not the column less the padding.",
        source="flash-attention, commit 29956362",
        pinned=TestAt(
            "reference/softmax/test_attention.py::"
            "test_alibi_halves_a_weight_per_token_of_distance_by_hand[attention]"
        ),
        planted=Edit(
            "reference.softmax.attention",
            "slope[:, None, None] * (p - j).abs()",
            "slope[:, None, None] * (i - j).abs()",
        ),
    ),
    "page_values_addressed_like_keys": KnownBug(
        happened="Wrong outputs where the head dims of keys and values differ.",
        cause="The strides of the keys were used for the values.",
        source="flash-attention, commits 6d199aa2, e3b2400a, 9e07d6d3",
        pinned=PAGES,
        planted=Edit("kernels.softmax.paged", "*v_pages.stride()", "*k_pages.stride()"),
    ),
    "pages_of_the_first_key": KnownBug(
        happened="Wrong keys wherever a tile of keys begins in one page and ends in another.",
        cause="The last keys of a tile were read through the pointer of another page.",
        source="flash-attention 2745 (69e1bcbe)",
        pinned=PAGES,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "table + (columns // size)",
            "table + (columns * 0 + tl.min(columns, 0) // size)",
        ),
    ),
    "reflections_of_16_bits": KnownBug(
        happened="PaTH attention in float32 loses digits after the first chunk of keys.",
        cause="What the reflections of a chunk leave of a query was kept in 16 bits.",
        source="flash-linear-attention 0.6.0, `path_reflections_in_float16` of its ledger here",
        pinned=pin("path_attn", "parallel", {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3}, (40,)),
        planted=Edit(
            "kernels.softmax.path_spans",
            "store_pieces(x, piece_stride, scale * acc, rows",
            "store_pieces(x, piece_stride, (scale * acc).to(tl.bfloat16).to(tl.float32), rows",
        ),
    ),
    "row_sums_of_the_first_block": KnownBug(
        happened=(
            "dq, dk and dv wrong as soon as a block of keys has more than one block of queries."
        ),
        cause="lse and delta were loaded at m_block_min instead of m_block.",
        source="flash-attention, commit b3f1b6a5",
        pinned=TWO_BLOCKS,
        planted=Edit(
            "kernels.softmax.backward",
            "terms + first_row * 4, start, rows, high, bounded",
            "terms + first_row * 4, bounds[0], rows, high, bounded",
        ),
    ),
    "scale_of_the_caller_dropped": KnownBug(
        happened=(
            "Wrong results for any scale but 1 / sqrt(d), once the attention is recognised and "
            "fused."
        ),
        cause="The replacement did not pass the scale on.",
        source="PyTorch 151098 and 174049 (fix 174361)",
        pinned=pin("attention", "parallel", SMALL, (7,), law="plumbing", options={"scale": 0.5}),
        planted=Edit(
            "kernels.softmax.attention",
            'resolve_scale(scale, sizes["K"])',
            'resolve_scale(None, sizes["K"])',
        ),
    ),
    "scale_of_the_keys_ignored": KnownBug(
        happened="Attention to 8-bit keys as if they were not scaled.",
        cause=(
            "The scales were swallowed by a positional argument, or used for another format only."
        ),
        source="flashinfer 1023, 4979; vLLM 51363",
        pinned=QUANTIZED,
        planted=Edit(
            "kernels.softmax.paged_forward", "products *= k_factor[None, :]", "products *= 1.0"
        ),
    ),
    "scale_of_the_values_twice": KnownBug(
        happened="Garbage from an 8-bit cache.",
        cause="Values that were dequantized already were scaled again.",
        source="vLLM 48016",
        pinned=QUANTIZED,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "v_tile.to(tl.float32) * v_factor[:, None]",
            "v_tile.to(tl.float32) * v_factor[:, None] * v_factor[:, None]",
        ),
    ),
    "sequence_offsets_of_32_bits": KnownBug(
        happened="Illegal memory access, or a wrong dq, for many or long sequences.",
        cause="The row offset of a sequence was an int32 product.",
        source="flash-attention 1500 (6865e601) and 2260 (b62d93f3)",
        pinned=TestAt(
            "properties/suite/test_far_addresses.py::"
            "test_offsets_are_64_bits_wide[attention-parallel-sequences]"
        ),
        planted=Edit(
            "kernels.softmax.forward",
            "q += batch * stride_qb + start_q * stride_qt",
            "q += batch * stride_qb + (start_q.to(tl.int32) * stride_qt)",
        ),
    ),
    "sink_outside_the_running_maximum": KnownBug(
        happened="lse infinite for a sink of 100, NaN for a row without keys.",
        cause="exp(sink - maximum) with a maximum over the keys alone.",
        source="flash-attention 2752 (review thread)",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 3, "K": 5, "V": 3},
            (7,),
            given=("sink",),
            values="large_logits",
            seed=5,
        ),
        planted=Edit(
            "kernels.softmax.logits",
            ' + sink_logit\n        weight_sum += tl.where(sink_logit == float("-inf"), 0.0, 1.0)',
            "\n        weight_sum += tl.exp2(sink_logit)",
        ),
    ),
    "sink_without_exp": KnownBug(
        happened="A learnable sink gave a wrong normalizer.",
        cause="Implemented as e^x / (sink + Σ e^x) instead of e^x / (e^sink + Σ e^x).",
        source="flash-attention, commit e81c237e",
        pinned=SINK,
        planted=Edit(
            "kernels.softmax.logits",
            'tl.where(sink_logit == float("-inf"), 0.0, 1.0)',
            "sink_logit * LN2 * tl.exp2(-sink_logit)",
        ),
    ),
    "sixteen_bit_positions": KnownBug(
        happened="Finite but wrong outputs from 65537 keys on, NaN from 32768 on elsewhere.",
        cause=(
            "The index of a token was cast to 16 bits: in one of the two by its code, in the other "
            "as its reporter infers."
        ),
        source="PyTorch 162588 (fix 187225); xformers 719",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
            (2,),
            law="causality",
            key_lengths=(32780,),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.forward",
            "columns = start + tl.arange(0, KEYS)",
            "columns = (start + tl.arange(0, KEYS)).to(tl.int16).to(tl.int32)",
        ),
    ),
    "slopes_in_half_precision": KnownBug(
        happened="ALiBi imprecise, or refused, after model.half().",
        cause=(
            "The slopes are a registered buffer, which half() casts too; the kernel needs them in "
            "float32."
        ),
        source="flash-attention 846, commit 6bbc5323",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 3, "K": 5, "V": 3},
            (40,),
            dtype="bfloat16",
            given=("alibi_slopes",),
            float32=("alibi_slopes",),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "contiguous(sink, alibi_slopes, rules",
            "contiguous(sink, None if alibi_slopes is None else alibi_slopes.to(dtype), rules",
        ),
    ),
    "softcap_without_backward": KnownBug(
        happened="NaN gradients while training Gemma 2.",
        cause=(
            "The forward pass took a softcap, the backward pass did not have its derivative, and "
            "nothing refused it."
        ),
        source="flash-attention 1065",
        pinned=pin("attention", "parallel", SMALL, (7,), options={"softcap": 2.0}),
        planted=Edit(
            "kernels.softmax.logits",
            "return 4.0 * e / ((1.0 + e) * (1.0 + e))",
            "return 1.0 + 0.0 * e",
        ),
    ),
    "strides_from_the_shape": KnownBug(
        happened="Wrong memory accesses for q, k and v that are transposed views.",
        cause=(
            "The layouts were rebuilt from the shapes. A last stride of 1 says nothing about the "
            "others."
        ),
        source="flash-attention 2666, fixed by 2670 (46b2ae32)",
        pinned=HEADS_FIRST,
        planted=Edit(
            "kernels.softmax.attention",
            "*outer_strides(q, k, v), *self.pairs,\n            GATED",
            "*outer_strides(q, k.contiguous(), v), *self.pairs,\n            GATED",
        ),
    ),
    "strides_of_dims_of_one": KnownBug(
        happened="Tensors of one token and one channel are refused although they are contiguous.",
        cause="The stride of a dim of size 1 is arbitrary, and contiguous() leaves it as it is.",
        source="PyTorch 116333",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
            (1,),
            layout="strided",
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "q, k, v = dense_rows(*(x.to(self.dtype) for x in (self.q, self.k, self.v)))\n",
            (
                "q, k, v = contiguous(*(x.to(self.dtype) for x in (self.q, self.k, self.v)))\n"
                "        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1\n"
            ),
        ),
    ),
    "strides_of_the_row_statistics": KnownBug(
        happened=(
            "Silently wrong gradients where the statistics of the rows are not packed as [B, H, T]."
        ),
        cause="The backward kernel ignored the strides that they were declared with.",
        source="cudnn-frontend 304",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 2, "G": 1, "R": 2, "K": 5, "V": 3},
            (7,),
            law="layout_invariance",
        ),
        planted=Edit("kernels.softmax.attention", "dlse.contiguous()", "dlse"),
    ),
    "sum_of_no_weights": KnownBug(
        happened="NaN from decoding with an empty cache in one entry of the batch.",
        cause="0 / 0 in the normalization.",
        source="flash-linear-attention, attn_decoding_one_step, before 0.6.0",
        pinned=pin("attention", "parallel", SMALL, (1, 2), key_lengths=(0, 3), packed=True),
        planted=Edit(
            "kernels.softmax.forward",
            "acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]",
            "acc / weight_sum[:, None]",
        ),
    ),
    "sums_that_start_as_garbage": KnownBug(
        happened="Garbage in padded rows and in states, once calls are captured in a CUDA graph.",
        cause="empty where it should be zeros.",
        source="flash-linear-attention 80e69a56",
        pinned=pin(
            "attention",
            "parallel",
            SMALL,
            (70,),
            law="written_outputs",
            given=("g",),
            tile=7,
            options={"causal": True, "window": 3},
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "row_sums = terms.new_zeros(",
            "row_sums = terms.new_empty(",
        ),
    ),
    "table_shorter_than_the_length": KnownBug(
        happened="Silent corruption: the table of pages was read past its end.",
        cause="Nothing compared the lengths with the width of the table.",
        source="flash-attention 2709, pull request 2711 (77aacb68)",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED,
            (1,),
            law="rejection",
            seed=3,
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.paged",
            "if cdiv(length, size) > block_table.shape[1]:",
            "if cdiv(length, size) > pool:",
        ),
    ),
    "tail_keys_in_dq": KnownBug(
        happened=(
            "NaN in dq, with dk and dv right: float16, one token of one head of 16, inputs three "
            "times too large."
        ),
        cause=(
            "Elements past seqlen_k were not masked, as their rows of K are zero; but exp(0 - "
            "lse)·dP overflows where the lse is very negative, and Inf·0 is NaN."
        ),
        source="flash-attention, report 334 and commit a4f148b6",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 16, "V": 3},
            (9,),
            dtype="float16",
            key_lengths=(2,),
            values="large_logits",
            options={"scale": 2.0},
        ),
        planted=Edit("kernels.softmax.backward", "sees(key < high,", "sees(key >= 0,"),
    ),
    "tail_keys_in_the_softmax": KnownBug(
        happened="Garbage from decoding with 38, 39 or 70 keys, which are no multiple of 32.",
        cause="The last step read past the end of K and V and had no mask.",
        source="PyTorch 169222, MPS",
        pinned=pin("attention", "parallel", SMALL, (1,), key_lengths=(38,)),
        planted=Edit("kernels.softmax.forward", "sees(key < high,", "sees(key >= 0,"),
    ),
    "tail_masked_only_beside_another_mask": KnownBug(
        happened="NaN in dq of packed sequences with many queries and few keys.",
        cause=(
            "The mask of the tail was applied only in blocks that the causal mask cuts as well; "
            "others read keys that do not exist."
        ),
        source="flash-attention, report 443 and commit c65b5106",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 5, "V": 3},
            (9, 21),
            key_lengths=(3, 19),
            packed=True,
            options={"window": 30},
        ),
        planted=Edit("kernels.softmax.logits", "tl.minimum(common_high, high)", "common_high"),
    ),
    "tile_classified_by_its_start": KnownBug(
        happened=(
            "Wrong outputs, and reads of what the kernel itself has not written yet, where the "
            "chunk is not a multiple of the tile."
        ),
        cause="A tile was classified by its start alone.",
        source="flash-linear-attention 51a8c0a8 (1105), issue 1104, deltaformer",
        pinned=CAUSAL,
        planted=Edit(
            "kernels.softmax.logits",
            "count = tl.maximum(tl.minimum(common_high, high) - first, 0) // BLOCK",
            "count = tl.cdiv(tl.maximum(tl.minimum(common_high, high) - first, 0), BLOCK)",
        ),
    ),
    "token_offsets_of_32_bits": KnownBug(
        happened=(
            "Silent corruption, then an illegal memory access, for views of a fused projection."
        ),
        cause="offs·stride in int32, where the stride from token to token is 3·H·D.",
        source="SageAttention 386",
        pinned=TestAt(
            "properties/suite/test_far_addresses.py::"
            "test_offsets_are_64_bits_wide[attention-parallel-tokens]"
        ),
        planted=Edit(
            "kernels.softmax.logits",
            "tl.arange(0, rows.shape[0])[:, None].to(tl.int64) * stride",
            "tl.arange(0, rows.shape[0])[:, None] * stride",
        ),
    ),
    "value_mask_of_the_key_dim": KnownBug(
        happened="Wrong outputs where the head dim of V is not that of Q and K.",
        cause="The predicate of V compared with params.d instead of params.dv.",
        source="flash-attention, commits 6d199aa2, e3b2400a and 9e07d6d3",
        pinned=WIDER_VALUES,
        planted=Edit(
            "kernels.softmax.forward",
            "columns, high, in_v, FULL_V",
            "columns, high, tl.arange(0, PAD_V) < key_dim, FULL_V",
        ),
    ),
    "values_addressed_like_keys": KnownBug(
        happened=(
            "A Hopper kernel did not compile: the pipeline of V was built from the parameters of "
            "K. Where both have one head dim and one layout, nobody notices."
        ),
        cause="One name copied for the other; K and V were never drawn apart.",
        source="flash-attention, Hopper forward kernel (report of a user)",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 2, "R": 1, "K": 5, "V": 3},
            (7,),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "*outer_strides(q, k, v), *self.pairs,\n            GATED",
            "*outer_strides(q, k, k), *self.pairs,\n            GATED",
        ),
    ),
    "values_past_the_length_of_a_page": KnownBug(
        happened="NaN from a paged cache whose memory had been used before.",
        cause="The values past the length were read: their weight is 0, but 0 times NaN is NaN.",
        source="vLLM 641, pull request 936",
        pinned=PAGES,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "mask=inside[:, None] & in_dims[None, :]",
            (
                "mask=(columns < tl.cdiv(tl.max(tl.where(inside, columns + 1, 0), 0), size) * size)"
                "[:, None] & in_dims[None, :]"
            ),
        ),
    ),
    "second_softmax_past_float16": KnownBug(
        happened="NaN gradients of differential attention in float16, where lam is above 1.",
        cause=(
            "-lam do, the cotangent of the second softmax, left the range of float16: dividing "
            "cotangents did not allow for lam."
        ),
        source="this project, found when cotangents near the range of float16 were first drawn",
        pinned=TestAt(
            "kernels/softmax/test_differential.py::test_logits_may_have_gradients_past_float16"
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "powers(do, dlse, v, *boundaries, factors)",
            "powers(do, dlse, v, *boundaries)",
        ),
    ),
    "values_past_the_sequence": KnownBug(
        happened="NaN in o where rows of V past the length of the cache hold NaN or Inf.",
        cause="The tail of V was loaded as it is. Its weights are 0, and 0·NaN is NaN.",
        source="flash-attention 1745 and 2374",
        pinned=pin("attention", "parallel", SMALL, (5, 7), law="packing", packed=True, seed=1),
        planted=Edit(
            "kernels.softmax.forward",
            "v_tile = load_tile(v, stride_vt, start, columns, high,",
            "v_tile = load_tile(v, stride_vt, start, columns, num_keys - start_k,",
        ),
    ),
    "weights_not_masked_in_dv": KnownBug(
        happened="NaN gradients of packed sequences, and of tails without a causal mask.",
        cause="p = exp(qk - m) was not masked again in the inner loop of the backward pass.",
        source="flash-attention 1947; aiter 3551",
        pinned=CAUSAL,
        planted=Edit(
            "kernels.softmax.backward", "p = tl.where(visible, p, 0.0)\n", "p = p * 1.0\n"
        ),
    ),
    "window_clamped_to_the_keys": KnownBug(
        happened=(
            "Keys inside the window dropped where there are more queries than keys and the right "
            "window is unbounded."
        ),
        cause=(
            "window_size_right was clamped to seqlen_k. With the diagonal at the bottom right, a "
            "query may be as far from a key as there are queries."
        ),
        source="flash-attention 895",
        pinned=pin("attention", "parallel", SMALL, (19,), key_lengths=(6,), options={"window": 19}),
        planted=Edit("kernels.softmax.attention", "limit = queries + keys", "limit = keys"),
    ),
    "window_of_one_key_more": KnownBug(
        happened="sliding_window = 2048 keeps 2048 keys in one backend and 2049 in another.",
        cause="W passed on as a bound that is inclusive; it should be W - 1.",
        source="vLLM 3385; transformers 29623",
        pinned=WINDOW,
        planted=Edit(
            "kernels.softmax.logits",
            "visible & (key > position - window)",
            "visible & (key >= position - window)",
        ),
    ),
    "gradients_of_logits_past_float16": KnownBug(
        happened="NaN dq of gated attention in float16, with large values and cotangents.",
        cause=(
            "The kernel stored the gradient of the logits in float16, for a product with the keys. "
            "It overflowed, and inf - inf followed."
        ),
        source="this project, where large cotangents of large values were first drawn in float16",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (9,),
            dtype="float16",
            values="large_values",
            cotangents="large",
            seed=0,
            given=("g",),
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.attention",
            "            do, dlse = scaled.divided(do, dlse)\n",
            "            scaled = None\n",
        ),
    ),
    "gradients_of_selected_logits_past_float16": KnownBug(
        happened="NaN dq of selected attention in float16, with large values and cotangents.",
        cause=(
            "The kernel stored the gradient of the logits in float16, for a product with the keys. "
            "It overflowed, and inf - inf followed."
        ),
        source="this project, where large cotangents of large values were first drawn in float16",
        pinned=pin(
            "selected_attention",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3, "M": 2},
            (9,),
            dtype="float16",
            values="large_values",
            cotangents="large",
            seed=0,
        ),
        planted=Edit(
            "kernels.softmax.selected",
            "        do, dlse = scaled.divided(do, dlse)\n",
            "        scaled = None\n",
        ),
    ),
    "gradients_of_branches_past_float16": KnownBug(
        happened="NaN dq of native sparse attention in float16, with large values and cotangents.",
        cause=(
            "autograd rounded the gradient of each branch to float16 before it summed the three: "
            "inf - inf."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "nsa",
            "parallel",
            SMALL,
            (9,),
            dtype="float16",
            values="large_values",
            cotangents="large",
            options={"block_size": 2, "window": 3, "top_k": 3, "local_blocks": 1},
        ),
        planted=Edit(
            "kernels.softmax.nsa",
            "q, k, v, g_cmp, g_slc, g_swa = widened(q, k, v, g_cmp, g_slc, g_swa)",
            "",
        ),
    ),
    "projected_gradients_past_float16": KnownBug(
        happened="NaN gradient of the latents of MLA in float16, with large cotangents.",
        cause=(
            "Gradients of keys and values were rounded to float16 before the projection brought "
            "them to the latents: inf - inf."
        ),
        source="this project, where large cotangents in float16 were first drawn for wrappers",
        pinned=pin(
            "mla",
            "parallel",
            {"B": 1, "H": 2, "K": 5, "V": 3, "R": 6, "D": 2},
            (9,),
            dtype="float16",
            values="large_logits",
            cotangents="large",
        ),
        planted=Edit(
            "kernels.softmax.mla",
            "(_up(c, w) for w in (w_uk, w_uv))",
            "(_up(c.to(dtype), w) for w in (w_uk, w_uv))",
        ),
    ),
    "gates_subtracted_at_minus_infinity": KnownBug(
        happened="A gate of -inf makes logits NaN, the token's own too.",
        cause="A logit gets the difference of two sums of gates: of -inf and -inf.",
        source="flash-linear-attention 0.6.0, `gates_of_minus_infinity` of its ledger here",
        pinned=pin(
            "path_attn",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (5,),
            given=("g",),
            values="closed_gates",
        ),
        planted=Edit("kernels.softmax.gates", "        x = tl.where(shut, 0.0, x)\n", ""),
    ),
    "gates_summed_in_float32": KnownBug(
        happened="One gate of -1e6 erases all later gates of the sequence.",
        cause="A logit gets the difference of two float32 sums that begin at the first token.",
        source="flash-linear-attention 0.6.0, `gates_summed_over_the_sequence` of its ledger here",
        pinned=pin(
            "attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 12, "V": 9},
            (33,),
            given=("g",),
            values="extreme_gates",
            seed=2574,
            options={"scale": 0.0, "causal": True},
        ),
        planted=Edit(
            "kernels.softmax.gates",
            "tl.store(rest + base + t, (cumulative - leading.to(tl.float64)).to",
            "tl.store(rest + base + t, (0.0 * leading).to",
        ),
    ),
    "chunks_of_the_first_sequence": KnownBug(
        happened="Packed native sparse attention: wrong dk and dv of the compressed branch.",
        cause="The backward pass numbered the chunks of a sequence as if it were the first.",
        source="flash-linear-attention 585bb3c1 (707), 0abbe028 (690, 686)",
        pinned=pin(
            "nsa",
            "parallel",
            {"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            (4, 5),
            packed=True,
            options={"block_size": 2, "top_k": 3, "local_blocks": 1, "window": 2},
        ),
        planted=Edit(
            "kernels.softmax.nsa",
            "gradient[:, j.start : whole] =",
            "gradient[:, : whole - j.start] =",
        ),
    ),
    "invalid_slots_are_weighed": KnownBug(
        happened="NaN and wrong gradients where slots of a selection are -1.",
        cause="Their lanes were not masked before the exponential.",
        source="cudnn-frontend 676",
        pinned=pin(
            "selected_attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "M": 2},
            (9,),
            options={"block_size": 2},
        ),
        planted=Edit(
            "kernels.softmax.selection",
            (
                '        s = tl.where(seen[None, :], s, float("-inf"))\n'
                "        new_max = tl.maximum(row_max, tl.max(s, 1))\n"
            ),
            "        new_max = tl.maximum(row_max, tl.max(s, 1))\n",
        ),
    ),
    "mask_before_a_scale_below_zero": KnownBug(
        happened="NaN where a causal mask meets a scale of 0 or less.",
        cause="What is hidden was -inf before it was scaled.",
        source="PyTorch 2.13, `flash_scale_not_positive` of its ledger here",
        pinned=pin(
            "selected_attention",
            "parallel",
            {"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "M": 2},
            (9,),
            options={"block_size": 2, "scale": -1.25},
        ),
        planted=Edit(
            "kernels.softmax.selection",
            (
                ' * factor\n        s = tl.where(seen[None, :], s, float("-inf"))\n'
                "        new_max = tl.maximum(row_max, tl.max(s, 1))\n"
            ),
            (
                '\n        s = tl.where(seen[None, :], s, float("-inf")) * factor\n'
                "        new_max = tl.maximum(row_max, tl.max(s, 1))\n"
            ),
        ),
    ),
    "scale_that_is_not_finite": KnownBug(
        happened="A scale that is NaN or infinite is accepted, and results are NaN.",
        cause="Nobody looked at it.",
        source="PyTorch 2.13, `scale_not_finite` of its ledger here",
        pinned=pin(
            "deltaformer", "parallel", {"B": 1, "H": 1, "K": 5, "V": 3}, (3,), law="rejection"
        ),
        planted=Edit("kernels.scale", "if not is_finite(scale):", "if False:"),
    ),
    "part_without_keys": KnownBug(
        happened="NaN from merging with a part that has no keys, whose o may be anything.",
        cause="o was multiplied by its weight of 0.",
        source="SGLang and vLLM, `part_without_keys` of their ledgers here",
        pinned=pin("merge_attention", "fused", {"B": 1, "H": 3, "V": 5}, (7,), values="empty_rows"),
        planted=Edit(
            "kernels.softmax.merge",
            "return tl.where(weight[:, None] == 0.0, 0.0, weight[:, None] * o.to(tl.float32))",
            "return weight[:, None] * o.to(tl.float32)",
        ),
    ),
    "pages_of_one_row": KnownBug(
        happened="Latent attention is silently wrong for pages of more than one row.",
        cause="The kernel took each entry of the table for a row, whatever the page size was.",
        source="aiter 2996 and 3095",
        pinned=PAGES,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "page = tl.load(table + (columns // size).to(tl.int64) * stride_table",
            "page = tl.load(table + columns.to(tl.int64) * stride_table",
        ),
    ),
    "pages_of_two_rows_at_least": KnownBug(
        happened="Pages of one row: latent attention is garbled in 16 bits.",
        cause="Two rows were packed into a word, and the kernel took a page for as many rows.",
        source="sglang-jax issue 1074",
        pinned=pin("paged_attention", "fused", PAGED | {"C": 1}, (3,), seed=3),
        planted=Edit(
            "kernels.softmax.paged_forward",
            "    part = tl.cdiv(tl.cdiv(length_k, KEYS), splits) * KEYS\n",
            (
                "    part = tl.cdiv(tl.cdiv(length_k, KEYS), splits) * KEYS\n"
                "    size = tl.maximum(size, 2)\n"
            ),
        ),
    ),
    "whole_tiles_are_written": KnownBug(
        happened="Ragged decoding corrupts memory behind the output.",
        cause="The last step wrote a whole tile of rows, though the sequence had fewer.",
        source="aiter 3391",
        pinned=PAGES,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "tl.store(o, acc.to(o.dtype.element_ty), mask=exists[:, None] & in_v[None, :])",
            "tl.store(o, acc.to(o.dtype.element_ty), mask=in_v[None, :])",
        ),
        only_on="simulator",
    ),
    "window_not_passed_on": KnownBug(
        happened="Paged decoding attends to all tokens in layers that have a window.",
        cause="The kernel was called without the window.",
        source="mistral.rs issue 2094",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED,
            (1,),
            seed=3,
            law="plumbing",
            options={"causal": True, "window": 2},
        ),
        planted=Edit(
            "kernels.softmax.paged",
            "CAUSAL=causal, WINDOW=window is not None,",
            "CAUSAL=causal, WINDOW=False,",
        ),
    ),
    "groups_counted_by_their_size": KnownBug(
        happened="Sparse latent attention reads the keys of another group.",
        cause="A program number was divided by the group's size instead of the number of groups.",
        source="FlagGems 3759",
        pinned=pin("paged_attention", "fused", PAGED | {"B": 3, "G": 2, "R": 3}, (1,), seed=3),
        planted=Edit(
            "kernels.softmax.paged_forward",
            "kv_head = tl.program_id(0) // tiles // splits % kv_heads",
            "kv_head = tl.program_id(0) // tiles // splits % group % kv_heads",
        ),
    ),
    "values_that_fall_behind": KnownBug(
        happened="Latent attention with values narrower than keys is garbage past the first block.",
        cause="Scores took as many rows at a time as keys have dims, and values as many as values.",
        source="ik_llama.cpp 2031",
        pinned=MANY_KEYS,
        planted=Edit(
            "kernels.softmax.paged_forward",
            "v, v_scale, table, columns, inside,",
            (
                "v, v_scale, table, columns - (start - begin) * (key_dim - value_dim) // key_dim, "
                "inside,"
            ),
        ),
    ),
    "two_exponentials": KnownBug(
        happened="Decoding and prefill of one token differ in bits.",
        cause="Tiles without a mask took another exp2 than those with one.",
        source="flash-attention 2595 (commit c2006099)",
        pinned=pin(
            "paged_attention",
            "fused",
            PAGED | {"C": 64},
            (3,),
            seed=11,
            law="batch_invariance",
            options={"causal": True},
        ),
        planted=Edit(
            "kernels.softmax.logits",
            "p = tl.exp2(s)",
            (
                "whole = tl.min(tl.min(visible.to(tl.int32), 1), 0) == 1\n"
                "    p = tl.where(whole, tl.exp(s * LN2), tl.exp2(s))"
            ),
        ),
    ),
}
