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
OPS: dict[str, Op] = {
    op.name: op for family in _FAMILIES for op in vars(family).values() if isinstance(op, Op)
}

__all__ = ["DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
