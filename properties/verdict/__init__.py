"""Judging a result: error budgets, the comparison, and the report of a failure."""

from properties.verdict.budgets import budgets
from properties.verdict.compare import Budget, Comparison, compare
from properties.verdict.computation import Computation
from properties.verdict.precision import BY_DTYPE, Precision

__all__ = [
    "BY_DTYPE",
    "Budget",
    "Comparison",
    "Computation",
    "Precision",
    "budgets",
    "compare",
]
