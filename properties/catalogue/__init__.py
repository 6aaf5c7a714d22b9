"""One declaration per op; strategies, tests, fuzz jobs and mutants follow from it."""

from properties.catalogue.causal import (
    ATTNRES,
    BASED,
    DELTAFORMER,
    DIFFERENTIAL_ATTENTION,
    PARALLAX,
    PATH_ATTN,
    REBASED,
    STICKBREAKING_ATTN,
    WALL_ATTN,
)
from properties.catalogue.conv import SHORT_CONV, TOKEN_SHIFT
from properties.catalogue.delta import (
    COMBA,
    DELTA_RULE,
    DPLR,
    GATED_DELTA_PRODUCT,
    GATED_DELTA_RULE,
    GATED_OJA_RULE,
    GDN2,
    IPLR,
    KDA,
    MESA_NET,
    MOMENTUM_DELTA_RULE,
    PRECOND_GATED_DELTA_RULE,
    PRECOND_KDA,
    RWKV7,
)
from properties.catalogue.gate import DECAY_GATE, STRENGTH_GATE
from properties.catalogue.linear import (
    ABC,
    GLA,
    GSA,
    HGRN,
    LIGHTNET,
    LIGHTNING_ATTN,
    LINEAR_ATTN,
    LOG_LINEAR_ATTN,
    MAMBA2,
    MLSTM,
    RETENTION,
    RWKV4,
    RWKV6,
    SELECTIVE_SCAN,
    SIMPLE_GLA,
)
from properties.catalogue.norm import L2NORM, LAYER_NORM_GATED, RMS_NORM_GATED
from properties.catalogue.op import DTYPES, Argument, Mode, Op, Option, Output, Role
from properties.catalogue.paged import PAGED_ATTENTION
from properties.catalogue.position import MULTIAXIS_ROTARY, ROTARY_EMBEDDING
from properties.catalogue.selected import DSA, MLA, MOBA, MSA, NSA, SELECTED_ATTENTION
from properties.catalogue.softmax import ATTENTION, MERGE_ATTENTION, SIGMOID_ATTENTION
from properties.catalogue.sums import CUMSUM, LOGCUMSUMEXP, SOLVE_TRIL

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        LINEAR_ATTN,
        SIMPLE_GLA,
        RETENTION,
        LIGHTNING_ATTN,
        MAMBA2,
        GLA,
        RWKV6,
        HGRN,
        GSA,
        LIGHTNET,
        ABC,
        RWKV4,
        MLSTM,
        SELECTIVE_SCAN,
        LOG_LINEAR_ATTN,
        DELTA_RULE,
        GATED_DELTA_RULE,
        KDA,
        DPLR,
        RWKV7,
        IPLR,
        GATED_DELTA_PRODUCT,
        GDN2,
        COMBA,
        GATED_OJA_RULE,
        PRECOND_GATED_DELTA_RULE,
        PRECOND_KDA,
        MOMENTUM_DELTA_RULE,
        MESA_NET,
        ATTENTION,
        MERGE_ATTENTION,
        MLA,
        SELECTED_ATTENTION,
        NSA,
        MOBA,
        DSA,
        MSA,
        PAGED_ATTENTION,
        STICKBREAKING_ATTN,
        PATH_ATTN,
        WALL_ATTN,
        PARALLAX,
        DELTAFORMER,
        DIFFERENTIAL_ATTENTION,
        BASED,
        REBASED,
        ATTNRES,
        SIGMOID_ATTENTION,
        ROTARY_EMBEDDING,
        MULTIAXIS_ROTARY,
        SHORT_CONV,
        TOKEN_SHIFT,
        CUMSUM,
        LOGCUMSUMEXP,
        SOLVE_TRIL,
        DECAY_GATE,
        STRENGTH_GATE,
        L2NORM,
        RMS_NORM_GATED,
        LAYER_NORM_GATED,
    )
}

__all__ = ["DTYPES", "OPS", "Argument", "Mode", "Op", "Option", "Output", "Role"]
