"""Fewer gates than heads."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN where there are fewer kv heads than heads.",
    cause="Keys and values were repeated for the heads that share them, gates were not.",
    source="flash-linear-attention 59f3f67e, issue 624 (KDA)",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::test_the_layer_is_its_formula[options2-auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before="        g = F.logsigmoid(decay.float()) / self.gate_logit_normalizer",
        after=(
            "        decay = decay[:, :, :: self.num_heads // self.num_kv_heads]\n"
            "        g = F.logsigmoid(decay.float()) / self.gate_logit_normalizer"
        ),
    ),
)
