"""The measurements of each op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels import (
    attention,
    delta_rule,
    dplr,
    gated_delta_rule,
    gla,
    kda,
    l2norm,
    lightning_attn,
    linear_attn,
    mamba2,
    multiaxis_rotary,
    retention,
    rotary_embedding,
    rwkv7,
    short_conv,
    sigmoid_attention,
    simple_gla,
)
from kernels.bench import counts, inputs
from kernels.bench.inputs import Tensors
from kernels.bench.shapes import Form, Shape
from kernels.cache import pages
from kernels.tiles import TABLE


@dataclass(frozen=True)
class Problem:
    """The measurements of an op.

    Args:
        function: the op; its output is what it returns, or the first of what it returns.
        modes: those that it has kernels for.
        make: random inputs by name.
        moved: bytes of every input, output and gradient, once for each pass that needs it; from the
            shape, the size of an element, and whether the backward pass is included.
        operations: multiplications and additions, from the shape and the same.
        products: whether these are products of matrices that no way to compute the op does without.
        options: further arguments of the op.
        output_like: the input that the output looks like.
        constants: inputs that get no gradient.
        forms: those of `Shape` that it has.
        forward_only: whether it has no backward pass.
    """

    function: Callable[..., Any]
    modes: tuple[str, ...]
    make: Callable[[Shape, torch.dtype, torch.device], Tensors]
    moved: Callable[[Shape, int, bool], int]
    operations: Callable[[Shape, bool], int]
    products: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    output_like: str = "v"
    constants: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ("dense", "packed")
    forward_only: bool = False

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
        """Random tensors by name, the same for the same arguments."""
        torch.manual_seed(0)
        return {**self.make(shape, dtype, device), **inputs.of_form(shape, device)}


def _modes(op: str) -> tuple[str, ...]:
    return tuple(mode for name, mode in TABLE if name == op)


def _append(*, k_pages: Tensor, v_pages: Tensor, table: Tensor, mode: str, **new: Tensor) -> Tensor:
    """Write what `update` of a cache writes; "contiguous" has one page for each sequence."""
    if mode == "contiguous":
        sequences = len(table)
        k_pages, v_pages = (x.view(sequences, -1, *x.shape[2:]) for x in (k_pages, v_pages))
        table = torch.arange(sequences, dtype=torch.int32, device=table.device)[:, None]
    pages.append(k_pages=k_pages, v_pages=v_pages, table=table, ring=False, **new)
    return k_pages


# Ops with kernels that have no problem here yet.
NOT_MEASURED = (
    "attnres",
    "based",
    "cumsum",
    "decay_gate",
    "deltaformer",
    "differential_attention",
    "feature_map",
    "hgrn",
    "log_linear_attn",
    "mean_pooling",
    "merge_attention",
    "mesa_net",
    "momentum_delta_rule",
    "paged_attention",
    "parallax",
    "path_attn",
    "rebased",
    "rms_norm_gated",
    "selected_attention",
    "solve_tril",
    "stickbreaking_attn",
    "titans",
    "ttt_linear",
    "wall_attn",
)
_RECURRENT: tuple[Form, ...] = ("dense", "packed", "decode")
PROBLEMS = {
    "linear_attn": Problem(
        function=linear_attn,
        modes=_modes("linear_attn"),
        make=inputs.queries_keys_values,
        moved=counts.linear_bytes,
        operations=counts.linear_operations,
        forms=_RECURRENT,
    ),
    "gla": Problem(
        function=gla,
        modes=_modes("gla"),
        make=inputs.gated,
        moved=counts.gated_bytes,
        operations=counts.gated_operations,
        forms=_RECURRENT,
    ),
    "simple_gla": Problem(
        function=simple_gla,
        modes=_modes("simple_gla"),
        make=inputs.gated_heads,
        moved=counts.bytes_with(lambda shape: 1),
        operations=counts.gated_operations,
        forms=_RECURRENT,
    ),
    "retention": Problem(
        function=retention,
        modes=_modes("simple_gla"),
        make=inputs.queries_keys_values,
        moved=counts.linear_bytes,
        operations=counts.gated_operations,
        forms=_RECURRENT,
    ),
    "lightning_attn": Problem(
        function=lightning_attn,
        modes=_modes("simple_gla"),
        make=inputs.queries_keys_values,
        moved=counts.linear_bytes,
        operations=counts.gated_operations,
        options={"layer_idx": 1, "num_layers": 4},
        forms=_RECURRENT,
    ),
    "mamba2": Problem(
        function=mamba2,
        modes=_modes("simple_gla"),
        make=inputs.mamba2,
        moved=counts.mamba2_bytes,
        operations=counts.gated_operations,
        output_like="x",
        forms=_RECURRENT,
    ),
    "delta_rule": Problem(
        function=delta_rule,
        modes=_modes("delta_rule"),
        make=inputs.delta,
        moved=counts.bytes_with(lambda shape: 1),
        operations=counts.delta_operations,
        forms=_RECURRENT,
    ),
    "gated_delta_rule": Problem(
        function=gated_delta_rule,
        modes=_modes("gated_delta_rule"),
        make=inputs.gated_delta,
        moved=counts.bytes_with(lambda shape: 2),
        operations=counts.delta_operations,
        forms=_RECURRENT,
    ),
    "kda": Problem(
        function=kda,
        modes=_modes("kda"),
        make=inputs.kda,
        moved=counts.bytes_with(lambda shape: shape.K + 1),
        operations=counts.delta_operations,
        forms=_RECURRENT,
    ),
    "dplr": Problem(
        function=dplr,
        modes=_modes("dplr"),
        make=inputs.dplr,
        moved=counts.bytes_with(lambda shape: shape.K, rows=2),
        operations=counts.delta_operations,
        forms=_RECURRENT,
    ),
    "rwkv7": Problem(
        function=rwkv7,
        modes=_modes("dplr"),
        make=inputs.rwkv7,
        moved=counts.bytes_with(lambda shape: shape.K, rows=2),
        operations=counts.delta_operations,
        forms=_RECURRENT,
    ),
    "l2norm": Problem(
        function=l2norm,
        modes=_modes("l2norm"),
        make=inputs.vectors,
        moved=counts.elementwise_bytes,
        operations=counts.elementwise_operations,
        output_like="x",
        forms=("dense",),
    ),
    "short_conv": Problem(
        function=short_conv,
        modes=_modes("short_conv"),
        make=inputs.channels,
        moved=counts.elementwise_bytes,
        operations=counts.elementwise_operations,
        output_like="x",
    ),
    "attention": Problem(
        function=attention,
        modes=_modes("attention"),
        make=inputs.queries_keys_values,
        moved=counts.attention_bytes,
        operations=counts.attention_operations,
        products=True,
        options={"causal": True},
    ),
    "sigmoid_attention": Problem(
        function=sigmoid_attention,
        modes=_modes("sigmoid_attention"),
        make=inputs.queries_keys_values,
        moved=counts.attention_bytes,
        operations=counts.attention_operations,
        products=True,
        options={"causal": True},
    ),
    "rotary_embedding": Problem(
        function=rotary_embedding,
        modes=_modes("rotary_embedding"),
        make=inputs.rotary_inputs,
        moved=counts.rotary_bytes,
        operations=counts.rotary_operations,
        output_like="x",
        constants=("cos", "sin"),
    ),
    "multiaxis_rotary": Problem(
        function=multiaxis_rotary,
        modes=_modes("multiaxis_rotary"),
        make=inputs.multiaxis_inputs,
        moved=counts.multiaxis_bytes,
        operations=counts.rotary_operations,
        output_like="x",
        forms=("dense",),
        constants=("cos", "sin", "position_ids", "axes"),
    ),
    "cache_append": Problem(
        function=_append,
        modes=("contiguous", "paged"),
        make=inputs.cached,
        moved=counts.append_bytes,
        operations=counts.no_operations,
        forms=("dense",),
        forward_only=True,
    ),
}
