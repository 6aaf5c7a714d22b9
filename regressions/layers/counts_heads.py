"""A layer that advances its cache by heads instead of tokens."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Generation with a GLA layer went wrong after the first token: positions ran ahead.",
    cause="offset=q.shape[2] after q had been rearranged to [B, T, H, D]: heads, not tokens.",
    source="flash-linear-attention 81ec24f1, issue 126 (eight layers)",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::"
        "test_a_prompt_and_then_token_by_token_is_one_pass[1-auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before="offset = tokens if cu_seqlens is None else cu_seqlens.diff()",
        after="offset = q.shape[2] if cu_seqlens is None else cu_seqlens.diff()",
    ),
)
