"""Semantic operators: mistakes of a few lines, as engineers make them.

A single edit is wrong in most calls. These are wrong in few: past a size, with another option, in
one context, in a process' second call, for one layout, or if not everything is requested. They work
like `properties.mutants.operators`, but a change may have pieces at several places of a module.
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
