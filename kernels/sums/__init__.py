"""Sums and means over tokens, and systems of a chunk of them."""

from kernels.sums.cumsum import cumsum
from kernels.sums.logcumsumexp import logcumsumexp
from kernels.sums.mean_pooling import mean_pooling
from kernels.sums.solve_tril import solve_tril

__all__ = ["cumsum", "logcumsumexp", "mean_pooling", "solve_tril"]
