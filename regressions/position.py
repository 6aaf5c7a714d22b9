"""Bugs of position embeddings."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug, pin

SMALL = {"B": 2, "H": 3, "D": 10, "P": 4}
BAD_OFFSETS = pin(
    "rotary_embedding", "fused", {"B": 2, "H": 1, "D": 6, "P": 3}, (3,), law="rejection"
)
PARTLY_ROTATED = pin("rotary_embedding", "fused", {"B": 1, "H": 2, "D": 12, "P": 3}, (5,))

BUGS = {
    "axes_interleaved_for_blocks": KnownBug(
        happened="Half of the angles of a two-dimensional rotation were wrong.",
        cause=(
            "Pairs were turned by the axes in turn (y, x, y, x), where the model has a section of "
            "pairs for each axis."
        ),
        source="vLLM-Omni 1784",
        pinned=TestAt("properties/suite/test_rotary.py::test_axes_are_those_of_the_reference"),
        planted=Edit(
            "kernels.position.tables",
            "    if interleaved:\n        turns",
            "    if True:\n        turns",
        ),
    ),
    "dims_that_stay_have_strides": KnownBug(
        happened=(
            "n_dims < head_dim and a source that is not contiguous: the dims past n_dims are "
            "those of other elements."
        ),
        cause="The copy of what is not turned took no notice of the strides.",
        source="llama.cpp 14580",
        pinned=pin(
            "rotary_embedding", "fused", {"B": 1, "H": 2, "D": 9, "P": 2}, (5,), layout="strided"
        ),
        planted=Edit(
            "kernels.position.rotary",
            "kept = tl.load(x_ptr + still * x_stride_d, mask=rest)",
            "kept = tl.load(x_ptr + still, mask=rest)",
        ),
    ),
    "dynamic_without_its_factor": KnownBug(
        happened="Dynamic NTK scaling was the same for every factor.",
        cause="The base grew with the length alone; the factor of the configuration was not used.",
        source="mlx-lm 1545 (one of four defects)",
        pinned=TestAt(
            "properties/suite/test_rotary.py::"
            "test_scaled_tables_are_those_of_the_reference[dynamic]"
        ),
        planted=Edit("kernels.position.tables", "factor=1 + factor * past /", "factor=1 + past /"),
    ),
    "heads_taken_for_time": KnownBug(
        happened="Head h is turned by the angle of position + h.",
        cause="For an input [B, T, H, D] the kernel counted positions along the heads.",
        source="emlx 121 (mlx fast::rope)",
        pinned=pin("rotary_embedding", "fused", SMALL, (5,)),
        planted=Edit(
            "kernels.position.rotary", "row = (time + offset)", "row = (time + head + offset)"
        ),
    ),
    "offset_ignored": KnownBug(
        happened=(
            "Decoding with the rotation fused into attention: every query turned as if it were "
            "at another position, once an offset was given. Prefill was right."
        ),
        cause="The decode kernel took no notice of the offset that the prefill kernel honoured.",
        source="flashinfer 847",
        pinned=pin(
            "rotary_embedding", "fused", SMALL, (6,), law="plumbing", options={"seqlen_offsets": 4}
        ),
        planted=Edit("kernels.position.rotary", "row = (time + offset)", "row = time"),
    ),
    "offsets_before_the_tables": KnownBug(
        happened=(
            "NaN in rows of a left-padded batch: offsets were negative there, and the rows were "
            "left as the memory was found."
        ),
        cause=(
            "A test that the row of the tables exists skipped such tokens in an output made by "
            "empty_like, and nothing refused their offsets."
        ),
        source="flash-linear-attention bd67d117, pull request 967",
        pinned=BAD_OFFSETS,
        planted=Edit(
            "kernels.position.rotary", "if low < 0 or high >= count:", "if high >= count:"
        ),
    ),
    "offsets_clamped_to_zero": KnownBug(
        happened="Left-padded batches got wrong positions.",
        cause=(
            "Offsets, negative because of the padding, were clamped to 0 instead of refused or "
            "honoured."
        ),
        source="flash-linear-attention 7d079d70",
        pinned=BAD_OFFSETS,
        planted=Edit(
            "kernels.position.rotary",
            "rows = offsets[:, None]",
            "rows = offsets.clamp(min=0)[:, None]",
        ),
    ),
    "partners_half_a_head_apart": KnownBug(
        happened="rotary_dim < head_dim: wrong outputs, or reads outside the tables.",
        cause=(
            "The partner of dim i was dim i + head_dim // 2, hard-coded, where it is i + "
            "rotary_dim "
            "// 2."
        ),
        source="Liger-Kernel 1451",
        pinned=PARTLY_ROTATED,
        planted=Edit(
            "kernels.position.rotary",
            "x2 = tl.load(x_ptr + (pairs + pair)",
            "x2 = tl.load(x_ptr + (head_dim // 2 + pair)",
        ),
    ),
    "positions_counted_as_tokens": KnownBug(
        happened="M-RoPE overwrote the memory behind queries and keys.",
        cause="The number of tokens was that of the positions, of which each token has three.",
        source="sgl-kernel-xpu 202",
        pinned=pin("multiaxis_rotary", "fused", {"B": 1, "H": 2, "D": 12, "A": 3, "P": 6}, (5,)),
        planted=Edit(
            "kernels.position.rotary",
            "vectors = batch * tokens * heads",
            "vectors = (tokens if rows is None else rows.numel()) * heads",
        ),
    ),
    "positions_of_the_longest_sequence": KnownBug(
        happened=(
            "Batched generation from left-padded prompts: the rows of short prompts are garbage."
        ),
        cause=(
            "The shared position of the cache, that of the longest sequence, was used for "
            "every row."
        ),
        source="unsloth 3699 (pull requests 3795, 3803, 4078)",
        pinned=pin("rotary_embedding", "fused", SMALL, (1,), options={"seqlen_offsets": [3, 7]}),
        planted=Edit(
            "kernels.position.rotary",
            "rows = offsets[:, None]",
            "rows = offsets.amax().expand(len(offsets))[:, None]",
        ),
    ),
    "rows_of_a_batch_in_one_program": KnownBug(
        happened="Batched decode: row 0 of the batch is exact, all others are corrupted.",
        cause=(
            "The stride or the axis of a single token was a case of its own, and a wrong one for a "
            "batch."
        ),
        source="mlx issue 3795",
        pinned=pin(
            "rotary_embedding",
            "fused",
            {"B": 3, "H": 2, "D": 6, "P": 3},
            (1,),
            options={"seqlen_offsets": 4},
        ),
        planted=Edit(
            "kernels.position.rotary",
            "batch = first_token // tokens_per_sequence + time // tokens_per_sequence",
            "batch = first_token // tokens_per_sequence",
        ),
    ),
    "rows_of_the_first_sequence": KnownBug(
        happened=(
            "Wrong outputs of a multimodal model as soon as its positions differed between the "
            "rows of a batch."
        ),
        cause=(
            "The kernel addressed cosines and sines by the token within its sequence, so that "
            "every "
            "sequence read the rows of the first."
        ),
        source="Liger-Kernel 461, 464",
        pinned=pin("rotary_embedding", "fused", SMALL, (5,), options={"seqlen_offsets": [0, 7]}),
        planted=Edit(
            "kernels.position.rotary",
            "batch * rows_stride_b + time * rows_stride_t",
            "time * rows_stride_t",
        ),
    ),
    "tables_in_low_precision": KnownBug(
        happened=(
            "Far positions turned by angles that are wrong by up to a radian; 15962 was 15936 in "
            "bfloat16."
        ),
        cause=(
            "Positions and frequencies, and with them their product, were in the low precision of "
            "the model: bfloat16 has no odd number above 256."
        ),
        source="transformers 25681, 29285, 29496; gpt-neox 1003; candle 3520",
        pinned=TestAt(
            "properties/suite/test_rotary.py::test_tables_are_those_of_the_reference_rounded_once"
        ),
        planted=Edit(
            "kernels.position.tables",
            "angles = torch.outer(torch.arange(length, **exact), θ)",
            "angles = torch.outer(torch.arange(length).to(device, dtype), θ.to(dtype))",
        ),
    ),
    "tables_of_the_model_dim": KnownBug(
        happened=(
            "A rotary module given hidden_size as its dim: an illegal memory access as soon as "
            "the model ran under torch.compile."
        ),
        cause=(
            "The tables were as wide as half the model dim; nothing compared them with the "
            "head, and "
            "the kernel addressed dims of a head that it does not have."
        ),
        source="flash-linear-attention, RotaryEmbedding (report of a user)",
        pinned=pin(
            "rotary_embedding", "fused", {"B": 2, "H": 3, "D": 10, "P": 5}, (7,), law="rejection"
        ),
        planted=Edit(
            "kernels.position.rotary",
            "if 2 * pairs > head_dim:",
            "if 2 * pairs > head_dim * sizes['H']:",
        ),
    ),
    "tables_shorter_than_the_sequence": KnownBug(
        happened="Generation past the length of the cosine cache: an illegal memory access.",
        cause="The kernel read row offset + t of the tables without a test that there is one.",
        source="flash-linear-attention 1ec27894, issue 410, pull request 423",
        pinned=pin(
            "rotary_embedding",
            "fused",
            {"B": 1, "H": 2, "D": 6, "P": 3},
            (3, 4),
            law="rejection",
            packed=True,
        ),
        planted=Edit("kernels.position.rotary", "if low < 0 or high >= count:", "if low < 0:"),
    ),
    "token_stride_from_the_shape": KnownBug(
        happened="Wrong rotations where queries or keys are slices of another tensor, as in MLA.",
        cause="The kernel took tokens to lie heads * head_dim apart instead of reading the stride.",
        source="vLLM 16658, pull request 17091",
        pinned=pin(
            "rotary_embedding",
            "fused",
            {"B": 1, "H": 2, "D": 6, "P": 3},
            (5,),
            law="layout_invariance",
        ),
        planted=Edit("kernels.position.rotary", "time * x_stride_t", "time * heads * head_dim"),
    ),
    "turned_twice": KnownBug(
        happened=(
            "Garbage, in long outputs only: the later the position, the further the angles were "
            "off."
        ),
        cause=(
            "yarn was missing from is_rope, the test whether queries and keys are turned already: "
            "they were turned once before the attention backend and once in it."
        ),
        source="TensorRT-LLM 16378",
        pinned=pin(
            "rotary_embedding",
            "fused",
            {"B": 1, "H": 2, "D": 6, "P": 3},
            (5,),
            law="context_invariance",
            values="integers",
            options={"inplace": True},
        ),
        planted=Edit(
            "kernels.position.rotary",
            "        _rotary_(*rotation)\n        return x\n",
            "        _rotary_(*rotation)\n",
        ),
    ),
    "turned_and_then_refused": KnownBug(
        happened="An in-place call raised an error, and had turned its tensor.",
        cause=(
            "Autograd refuses to write to a leaf, or to one of several views, only after the "
            "forward pass of a function has written."
        ),
        source="this project, found by a reader",
        pinned=TestAt(
            "kernels/position/test_rotary.py::"
            "test_nothing_is_turned_where_autograd_allows_no_writing"
        ),
        planted=Edit(
            "kernels.position.rotary",
            "        ctx.mark_dirty(x)\n",
            "        ctx.mark_dirty(x)\n        _rotary_(*inputs)\n",
        ),
    ),
    "whole_head_turned": KnownBug(
        happened="A model with partial_rotary_factor = 0.5 solved 0 of 1319 problems.",
        cause=(
            "rotary_dim was not passed on: the kernel turned all dims of the head, and read past "
            "the end of each row of the tables to do so."
        ),
        source="vLLM 43676",
        pinned=PARTLY_ROTATED,
        planted=Edit(
            "kernels.position.rotary",
            "tokens, heads, head_dim, pairs, vectors, rotation.offset,",
            "tokens, heads, head_dim, head_dim // 2, vectors, rotation.offset,",
        ),
    ),
    "yarn_mscale_ignored": KnownBug(
        happened=(
            "With a factor of 16, mscale = 1 and mscale_all_dim = 1, cosines and sines were too "
            "large by 27 %."
        ),
        cause=(
            "The attention factor was computed from the factor alone; mscale and mscale_all_dim "
            "were "
            "read and dropped."
        ),
        source="vLLM 48621, pull request 48623",
        pinned=TestAt(
            "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[yarn]"
        ),
        planted=Edit(
            "kernels.position.tables",
            "(mscale * octaves + 1) / (mscale_all_dim * octaves + 1)",
            "octaves + 1",
        ),
    ),
    "tables_as_long_as_the_pack": KnownBug(
        happened="Packed sequences with one offset raise an error with tables of their length.",
        cause="The rows of the tables were compared with the tokens of the whole pack.",
        source="flash-linear-attention 0.6.0, `rotary_tables_of_the_pack` of its ledger here",
        pinned=pin(
            "rotary_embedding", "fused", {"B": 1, "H": 1, "D": 6, "P": 3}, (3, 3), packed=True
        ),
        planted=Edit(
            "kernels.position.rotary",
            "in_order = position_ids is None and offsets is None and cu_seqlens is None",
            "in_order = position_ids is None and offsets is None",
        ),
    ),
    "division_by_no_tokens": KnownBug(
        happened="A rotation of no tokens divides by zero.",
        cause="The launch divided by the number of rows.",
        source="flash-linear-attention 0.6.0, `rotary_of_no_tokens` of its ledger here",
        pinned=pin("rotary_embedding", "fused", {"B": 1, "H": 1, "D": 6, "P": 3}, (0,)),
        planted=Edit(
            "kernels.position.rotary",
            "    vectors = batch * tokens * heads\n",
            "    vectors = batch * tokens * heads\n    heads = vectors // (batch * tokens)\n",
        ),
    ),
    "growth_of_one_pair": KnownBug(
        happened="Dynamic NTK of a single pair of dims divides by zero.",
        cause="The exponent of the base is dim / (dim - 2), which one pair does not need.",
        source="transformers 5.24, `dynamic_of_one_pair` of its ledger here",
        pinned=TestAt(
            "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[dynamic]"
        ),
        planted=Edit(
            "kernels.position.tables",
            "    if pairs == 1:\n        return θ, 1.0\n",
            "",
        ),
    ),
    "ramp_that_falls": KnownBug(
        happened="YaRN interpolates all pairs where none should be.",
        cause="If the ramp begins past the last dim its end, which is cut, lies before it.",
        source="transformers 5.24, `yarn_without_slow_pairs` of its ledger here",
        pinned=TestAt(
            "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[yarn]"
        ),
        planted=Edit(
            "kernels.position.tables",
            "slow = ((index - first) / max(last - first, 1e-3)).clamp(0, 1)",
            "slow = ((index - first) / (last - first or 1e-3)).clamp(0, 1)",
        ),
    ),
    "mscale_of_zero": KnownBug(
        happened="YaRN with DeepSeek's default mscale_all_dim of 0 drops mscale.",
        cause="`if mscale and mscale_all_dim` takes a 0 for a number that is not given.",
        source="transformers 5.24, `yarn_mscale_of_zero` of its ledger here",
        pinned=TestAt(
            "properties/suite/test_rotary.py::test_scaled_tables_are_those_of_the_reference[yarn]"
        ),
        planted=Edit(
            "kernels.position.tables",
            "attention_factor = (mscale * octaves + 1)",
            "attention_factor = ((mscale if mscale_all_dim else 1.0) * octaves + 1)",
        ),
    ),
}
