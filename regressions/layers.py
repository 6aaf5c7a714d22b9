"""Bugs of layers: options that do not reach the op."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

TOKEN_BY_TOKEN = TestAt(
    "kernels/layers/test_gated_linear_attention.py::"
    "test_a_prompt_and_then_token_by_token_is_one_pass[1-auto]"
)
FORMULA = TestAt(
    "kernels/layers/test_gated_linear_attention.py::test_the_layer_is_its_formula[options0-auto]"
)
ROTARY = TestAt(
    "properties/suite/test_rotary.py::test_the_module_is_the_reference_with_tables_of_any_length"
)

BUGS = {
    "boundaries_not_passed_on": KnownBug(
        happened=(
            "Sequences packed into one row attended to each other, and log-probabilities were "
            "wrong."
        ),
        cause=(
            "The layer had the boundaries and ran its op without them, or with others that it had "
            "made from a mask."
        ),
        source=(
            "flash-linear-attention 9b3c930c (pull request 842, issue 838), f7c2c191 (pull request "
            "1088)"
        ),
        pinned=TestAt(
            "kernels/layers/test_gated_linear_attention.py::"
            "test_packed_sequences_are_kept_apart_without_a_cache[auto]"
        ),
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "            cu_seqlens=cu_seqlens,\n            mode",
            "            cu_seqlens=None,\n            mode",
        ),
    ),
    "counts_heads": KnownBug(
        happened=(
            "Generation with a GLA layer went wrong after the first token: positions ran ahead."
        ),
        cause="offset=q.shape[2] after q had been rearranged to [B, T, H, D]: heads, not tokens.",
        source="flash-linear-attention 81ec24f1, issue 126 (eight layers)",
        pinned=TOKEN_BY_TOKEN,
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "offset = tokens if cu_seqlens is None else cu_seqlens.diff()",
            "offset = q.shape[2] if cu_seqlens is None else cu_seqlens.diff()",
        ),
    ),
    "first_token_leaves_no_state": KnownBug(
        happened=(
            "The state was not written by a first call of one token per sequence and without a "
            "cache before it."
        ),
        cause="An early return for single tokens stood before the store of the final state.",
        source="flash-linear-attention, pull requests 1194 and 1246 (token_shift)",
        pinned=TOKEN_BY_TOKEN,
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "cache.update(state, layer=self.layer_idx, offset=offset)",
            (
                "if tokens > 1 or cache.state(self.layer_idx) is not None:\n"
                "                cache.update(state, layer=self.layer_idx, offset=offset)"
            ),
        ),
    ),
    "flag_stored_and_not_passed_on": KnownBug(
        happened="FlashSelfAttention(deterministic=True) was not deterministic.",
        cause="The constructor stored the flag, and forward never passed it on.",
        source="flash-attention 746, pull request 748 (386e3911)",
        pinned=TestAt("properties/suite/test_layers.py::test_a_layer_runs_the_kernels_of_its_mode"),
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "            mode=self.mode,\n        )",
            "        )",
        ),
    ),
    "gates_not_passed_on": KnownBug(
        happened="A simple GLA layer that failed, or ran without gates.",
        cause="Its decays were passed as gk=, the argument of another op, instead of g=.",
        source="flash-linear-attention 797bf72f, pull request 560",
        pinned=FORMULA,
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "            v,\n            g,\n",
            "            v,\n            None,\n",
        ),
    ),
    "gates_not_shared": KnownBug(
        happened="NaN where there are fewer kv heads than heads.",
        cause="Keys and values were repeated for the heads that share them, gates were not.",
        source="flash-linear-attention 59f3f67e, issue 624 (KDA)",
        pinned=TestAt(
            "kernels/layers/test_gated_linear_attention.py::"
            "test_the_layer_is_its_formula[options2-auto]"
        ),
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "        g = F.logsigmoid(decay.float()) / self.gate_logit_normalizer",
            (
                "        decay = decay[:, :, :: self.num_heads // self.num_kv_heads]\n"
                "        g = F.logsigmoid(decay.float()) / self.gate_logit_normalizer"
            ),
        ),
    ),
    "heads_not_merged": KnownBug(
        happened="Linear attention layers raised a shape error whatever they were given.",
        cause="The heads were not merged, or cut at the wrong place.",
        source="flash-linear-attention fa1ced13 (pull request 243), 2de145f1",
        pinned=FORMULA,
        planted=Edit(
            "kernels.layers.gated_linear_attention",
            "o = self.norm(o).flatten(2)",
            "o = self.norm(o)",
        ),
    ),
    "length_from_the_head_axis": KnownBug(
        happened="Tables that depend on the length were made for a wrong one.",
        cause="The sequence length was read from the axis of the heads.",
        source="mlx-lm 1545 (one of four defects)",
        pinned=ROTARY,
        planted=Edit(
            "kernels.layers.rotary_embedding",
            "max(each.shape[1] for each in x)",
            "max(each.shape[2] for each in x)",
        ),
    ),
    "pairing_not_passed_on": KnownBug(
        happened="Position-dependent garbage, in long outputs only.",
        cause="The module turned pairs of neighbours where the weights were made for halves.",
        source="TensorRT-LLM 16378 (second defect)",
        pinned=ROTARY,
        planted=Edit(
            "kernels.layers.rotary_embedding", "                interleaved=self.interleaved,\n", ""
        ),
    ),
    "rotary_dim_not_passed_on": KnownBug(
        happened=(
            "A configuration with partial_rotary_factor = 0.5 gave a model that rotates whole "
            "heads."
        ),
        cause="The module looked for another name, and fell back on head_dim.",
        source="vLLM 43770",
        pinned=ROTARY,
        planted=Edit(
            "kernels.layers.rotary_embedding",
            "                self.rotary_dim,\n",
            "                self.head_dim,\n",
        ),
    ),
    "scaled_for_the_longest_call": KnownBug(
        happened=(
            "With dynamic NTK scaling a sequence past the original length had other rotations "
            "after a longer one than before it."
        ),
        cause="Tables were made anew for more tokens than ever before, and not for fewer.",
        source="transformers 5.24, `dynamic_remembers` of its ledger here",
        pinned=TestAt(
            "kernels/layers/test_rotary_embedding.py::"
            "test_a_scaling_follows_the_tokens_so_far_and_nothing_else[scaling0]"
        ),
        planted=Edit(
            "kernels.layers.rotary_embedding", "tokens == self._tokens", "tokens <= self._tokens"
        ),
    ),
    "tables_as_long_as_the_queries": KnownBug(
        happened=(
            "Packed sequences that go on from a cache: an assertion, or tables that are too short."
        ),
        cause="The length to make tables for was that of the queries alone.",
        source="flash-linear-attention f08e57cf, pull request 516",
        pinned=ROTARY,
        planted=Edit(
            "kernels.layers.rotary_embedding",
            "return tokens + int(where.max()) if",
            "return max(tokens, int(where.max())) if",
        ),
    ),
    "tables_cast_with_the_model": KnownBug(
        happened=(
            "A model cast to 16 bits rotated far positions otherwise than one that was built in "
            "float32."
        ),
        cause=(
            "What the angles are made from was a buffer of the module, and .half() casts all "
            "buffers."
        ),
        source="transformers 25681",
        pinned=TestAt("kernels/layers/test_rotary_embedding.py::test_tables_stay_float32[half]"),
        planted=Edit(
            "kernels.layers.rotary_embedding",
            (
                "        device = fn(self._tables.new_empty(0)).device\n"
                "        if device != self._tables.device:\n"
                "            self._tables = self._build(self._tables.shape[1], self._tokens, "
                "device)\n"
            ),
            "        self._tables = fn(self._tables)\n",
        ),
    ),
    "tables_cut_along_the_features": KnownBug(
        happened="Sequences shorter than the tables: wrong cosines and sines.",
        cause="cos[:, :seqlen] is a slice of the features; positions are dim 0.",
        source="flash-attention c7c66976 (rotary)",
        pinned=ROTARY,
        planted=Edit(
            "kernels.layers.rotary_embedding",
            "                *tables,\n",
            "                *tables[:, :, :needed],\n",
        ),
    ),
    "tables_made_in_inference_mode": KnownBug(
        happened="RuntimeError in the first training step after an evaluation.",
        cause=(
            "The tables were built under inference_mode and kept; autograd may not save such "
            "tensors."
        ),
        source="flash-attention 70ab266a (rotary)",
        pinned=TestAt(
            "kernels/layers/test_rotary_embedding.py::"
            "test_tables_made_in_inference_mode_can_be_trained_with"
        ),
        planted=Edit(
            "kernels.layers.rotary_embedding",
            "with torch.inference_mode(False):",
            "with torch.inference_mode(torch.is_inference_mode_enabled()):",
        ),
    ),
}
