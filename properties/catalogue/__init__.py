"""One declaration per op; strategies, tests, fuzz jobs and mutants follow from it."""

from properties.catalogue import (
    causal,
    conv,
    delta,
    gate,
    linear,
    norm,
    paged,
    position,
    selected,
    softmax,
    sums,
)
from properties.catalogue.op import DTYPES, Argument, Mode, Op, Option, Output, Role

_FAMILIES = (linear, delta, softmax, selected, paged, causal, position, conv, sums, gate, norm)
_DECLARED = [
    (op, family.__name__)
    for family in _FAMILIES
    for op in vars(family).values()
    if isinstance(op, Op)
]
OPS: dict[str, Op] = {op.name: op for op, _ in _DECLARED}
# op → the module that declares it. A family imports ops of those before it alone.
DECLARING = {op.name: module for op, module in reversed(_DECLARED)}

__all__ = ["DECLARING", "DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
