"""Gates and strengths from what a layer projects."""

from kernels.gate.decay_gate import decay_gate
from kernels.gate.strength_gate import strength_gate

__all__ = ["decay_gate", "strength_gate"]
