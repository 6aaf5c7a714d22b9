"""Semantic operators: mistakes of a few lines, as engineers make them, each wherever it fits.

A single edit is wrong in most calls. These are wrong in a few: past a size, beside another option,
in one context, in the second call of a process, for one layout, or where a call does not ask for
everything. An operator here is like one of `properties.mutants.operators`, but its change may have
pieces at several places of a module.
"""

from properties.mutants.semantic import (  # noqa: F401 (each file enters its operators)
    addresses,
    asked,
    bounds,
    caching,
    context,
    empties,
    exponents,
    heads,
    layout,
    numbers,
    order,
    precision,
    sequences,
    tiers,
)
from properties.mutants.semantic.registry import SEMANTIC

__all__ = ["SEMANTIC"]
