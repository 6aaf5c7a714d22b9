"""Position encodings."""

from kernels.position.relative import relative_bias, relative_buckets
from kernels.position.rotary import multiaxis_rotary, rotary_embedding
from kernels.position.tables import rotary_axes, rotary_frequencies, rotary_tables, xpos_tables

__all__ = [
    "multiaxis_rotary",
    "relative_bias",
    "relative_buckets",
    "rotary_axes",
    "rotary_embedding",
    "rotary_frequencies",
    "rotary_tables",
    "xpos_tables",
]
