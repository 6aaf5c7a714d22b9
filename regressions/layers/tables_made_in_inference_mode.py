"""Evaluation, then training."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="RuntimeError in the first training step after an evaluation.",
    cause="The tables were built under inference_mode and kept; autograd may not save such "
    "tensors.",
    source="flash-attention 70ab266a (rotary)",
    pinned=TestAt(
        "kernels/layers/test_rotary_embedding.py::test_tables_made_in_inference_mode_can_be_trained_with"
    ),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before="with torch.inference_mode(False):",
        after="with torch.inference_mode(torch.is_inference_mode_enabled()):",
    ),
)
