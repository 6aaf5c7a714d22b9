"""One declaration per op; strategies, tests, fuzz jobs and mutants follow from it."""

from properties.catalogue.linear import GLA, LINEAR_ATTN, SIMPLE_GLA
from properties.catalogue.op import DTYPES, Argument, Mode, Op, Option, Output, Role
from properties.catalogue.position import ROTARY_EMBEDDING
from properties.catalogue.softmax import ATTENTION

OPS: dict[str, Op] = {
    op.name: op for op in (LINEAR_ATTN, GLA, SIMPLE_GLA, ATTENTION, ROTARY_EMBEDDING)
}

__all__ = ["DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
