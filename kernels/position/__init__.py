"""Position encodings."""

from kernels.position.rotary import rotary_embedding
from kernels.position.tables import rotary_tables

__all__ = ["rotary_embedding", "rotary_tables"]
