"""One declaration per op; strategies, tests, fuzz jobs and mutants follow from it."""

from properties.catalogue.linear import GLA, LINEAR_ATTN
from properties.catalogue.op import DTYPES, Argument, Mode, Op, Option, Output, Role
from properties.catalogue.position import ROTARY_EMBEDDING
from properties.catalogue.softmax import ATTENTION

OPS: dict[str, Op] = {op.name: op for op in (LINEAR_ATTN, GLA, ATTENTION, ROTARY_EMBEDDING)}

__all__ = ["DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
