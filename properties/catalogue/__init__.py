"""One declaration per op; strategies, tests, fuzz jobs and mutants follow from it."""

from properties.catalogue.conv import SHORT_CONV
from properties.catalogue.delta import DELTA_RULE, DPLR, GATED_DELTA_RULE, KDA, RWKV7
from properties.catalogue.linear import (
    GLA,
    LIGHTNING_ATTN,
    LINEAR_ATTN,
    MAMBA2,
    RETENTION,
    SIMPLE_GLA,
)
from properties.catalogue.norm import L2NORM
from properties.catalogue.op import DTYPES, Argument, Mode, Op, Option, Output, Role
from properties.catalogue.paged import PAGED_ATTENTION
from properties.catalogue.position import MULTIAXIS_ROTARY, ROTARY_EMBEDDING
from properties.catalogue.selected import DSA, MLA, MOBA, MSA, NSA, SELECTED_ATTENTION
from properties.catalogue.softmax import ATTENTION, MERGE_ATTENTION

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        LINEAR_ATTN,
        SIMPLE_GLA,
        RETENTION,
        LIGHTNING_ATTN,
        MAMBA2,
        GLA,
        DELTA_RULE,
        GATED_DELTA_RULE,
        KDA,
        DPLR,
        RWKV7,
        ATTENTION,
        MERGE_ATTENTION,
        MLA,
        SELECTED_ATTENTION,
        NSA,
        MOBA,
        DSA,
        MSA,
        PAGED_ATTENTION,
        ROTARY_EMBEDDING,
        MULTIAXIS_ROTARY,
        SHORT_CONV,
        L2NORM,
    )
}

__all__ = ["DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
