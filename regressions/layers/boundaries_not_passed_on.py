"""Packed sequences that become one."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Sequences packed into one row attended to each other, and log-probabilities were "
    "wrong.",
    cause="The layer had the boundaries and ran its op without them, or with others that it had "
    "made from a mask.",
    source="flash-linear-attention 9b3c930c (pull request 842, issue 838), f7c2c191 (pull request "
    "1088)",
    pinned=TestAt(
        "kernels/layers/test_gated_linear_attention.py::test_packed_sequences_are_kept_apart_without_a_cache[auto]"
    ),
    planted=Edit(
        module="kernels.layers.gated_linear_attention",
        before=("            cu_seqlens=cu_seqlens,\n            mode"),
        after=("            cu_seqlens=None,\n            mode"),
    ),
)
