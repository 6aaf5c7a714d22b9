"""The measurements of each op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernels import (
    attention,
    attnres,
    based,
    cumsum,
    decay_gate,
    delta_rule,
    deltaformer,
    differential_attention,
    dplr,
    feature_map,
    gated_delta_rule,
    gla,
    hgrn,
    kda,
    l2norm,
    lightning_attn,
    linear_attn,
    log_linear_attn,
    mamba2,
    mean_pooling,
    merge_attention,
    mesa_net,
    momentum_delta_rule,
    multiaxis_rotary,
    paged_attention,
    parallax,
    path_attn,
    rebased,
    retention,
    rms_norm_gated,
    rotary_embedding,
    rwkv7,
    selected_attention,
    short_conv,
    sigmoid_attention,
    simple_gla,
    solve_tril,
    stickbreaking_attn,
    titans,
    ttt_linear,
    wall_attn,
)
from kernels.bench import counts, inputs
from kernels.bench.inputs import Make, Tensors
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
            shape, the size of an element, and whether the backward pass is included. None counts
            the tensors.
        operations: multiplications and additions, from the shape and the same; None if nobody has
            counted them.
        products: whether these are products of matrices that no way to compute the op does without.
        options: further arguments of the op.
        output_like: the input that the output looks like, or such a tensor from the inputs.
        constants: inputs that get no gradient.
        forms: those of `Shape` that it has.
        forward_only: whether it has no backward pass.
    """

    function: Callable[..., Any]
    modes: tuple[str, ...]
    make: Callable[[Shape, torch.dtype, torch.device], Tensors]
    moved: Callable[[Shape, int, bool], int] | None = None
    operations: Callable[[Shape, bool], int] | None = None
    products: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    output_like: str | Callable[[Tensors], Tensor] = "v"
    constants: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ("dense", "packed")
    forward_only: bool = False

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
        """Random tensors by name, the same for the same arguments."""
        torch.manual_seed(0)
        return {**self.make(shape, dtype, device), **inputs.of_form(shape, device)}

    def output(self, given: Tensors) -> Tensor:
        """A tensor as the op returns of these inputs."""
        like = self.output_like
        return given[like] if isinstance(like, str) else like(given)

    def bytes(self, shape: Shape, dtype: torch.dtype, backward: bool) -> int:
        """How many bytes are moved at least."""
        if self.moved is not None:
            return self.moved(shape, dtype.itemsize, backward)
        given = self.inputs(shape, dtype, torch.device("meta"))
        return counts.once_each(given, self.output(given), backward)


def _modes(op: str) -> tuple[str, ...]:
    return tuple(mode for name, mode in TABLE if name == op)


def cache_append(
    *, k_pages: Tensor, v_pages: Tensor, table: Tensor, mode: str, **new: Tensor
) -> Tensor:
    """Write what `update` of a cache writes; "contiguous" has one page for each sequence."""
    if mode == "contiguous":
        sequences = len(table)
        k_pages, v_pages = (x.view(sequences, -1, *x.shape[2:]) for x in (k_pages, v_pages))
        table = torch.arange(sequences, dtype=torch.int32, device=table.device)[:, None]
    pages.append(k_pages=k_pages, v_pages=v_pages, table=table, ring=False, **new)
    return k_pages


def _problem(function: Callable[..., Any], op: str = "", **settings: Any) -> Problem:
    """The problem of a function of that name, or of kernels of another `op`."""
    return Problem(function=function, modes=_modes(op or function.__name__), **settings)


def _recurrent(
    function: Callable[..., Any],
    make: Make,
    moved: Callable[[Shape, int, bool], int],
    operations: Callable[[Shape, bool], int],
    op: str = "",
    **settings: Any,
) -> Problem:
    """The problem of a recurrence, which is also timed as it decodes."""
    return _problem(
        function, op, make=make, moved=moved, operations=operations,
        forms=("dense", "packed", "decode"), **settings,
    )  # fmt: skip


def _annotated(
    function: Callable[..., Any],
    op: str = "",
    *,
    make: Make | None = None,
    unit: tuple[str, ...] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
    **settings: Any,
) -> Problem:
    """The problem of a function whose annotations say what its inputs are."""
    make = make or inputs.annotated(function, unit=unit, **sizes)
    return _problem(function, op, make=make, forms=("dense",), **settings)


def _pairs(
    function: Callable[..., Any], scores: int = 1, sums: int = 1, **settings: Any
) -> Problem:
    """The problem of an op over all pairs of tokens."""
    operations = counts.operations_of_pairs(scores, sums)
    return _annotated(function, operations=operations, products=True, **settings)


def _queries_like(values: str) -> Callable[[Tensors], Tensor]:
    """The queries as long as values."""
    return lambda given: given["q"][..., :1].expand(*given["q"].shape[:-1], given[values].shape[-1])


_GATED, _DELTA = counts.gated_operations, counts.delta_operations
_DPLR_BYTES = counts.bytes_with(lambda shape: shape.K, rows=2)
_ELEMENTWISE: dict[str, Any] = {
    "moved": counts.elementwise_bytes,
    "operations": counts.elementwise_operations,
    "output_like": "x",
}
_CAUSAL: dict[str, Any] = {
    "make": inputs.queries_keys_values,
    "moved": counts.attention_bytes,
    "operations": counts.attention_operations,
    "products": True,
    "options": {"causal": True},
}
_PROBLEMS = (
    _recurrent(
        linear_attn, inputs.queries_keys_values, counts.linear_bytes, counts.linear_operations
    ),
    _recurrent(gla, inputs.gated, counts.gated_bytes, _GATED),
    _recurrent(simple_gla, inputs.gated_heads, counts.bytes_with(lambda shape: 1), _GATED),
    _recurrent(retention, inputs.queries_keys_values, counts.linear_bytes, _GATED, "simple_gla"),
    _recurrent(
        lightning_attn,
        inputs.queries_keys_values,
        counts.linear_bytes,
        _GATED,
        "simple_gla",
        options={"layer_idx": 1, "num_layers": 4},
    ),
    _recurrent(mamba2, inputs.mamba2, counts.mamba2_bytes, _GATED, "simple_gla", output_like="x"),
    _recurrent(delta_rule, inputs.delta, counts.bytes_with(lambda shape: 1), _DELTA),
    _recurrent(gated_delta_rule, inputs.gated_delta, counts.bytes_with(lambda shape: 2), _DELTA),
    _recurrent(kda, inputs.kda, counts.bytes_with(lambda shape: shape.K + 1), _DELTA),
    _recurrent(dplr, inputs.dplr, _DPLR_BYTES, _DELTA),
    _recurrent(rwkv7, inputs.rwkv7, _DPLR_BYTES, _DELTA, "dplr"),
    _annotated(l2norm, make=inputs.vectors, **_ELEMENTWISE),
    _problem(short_conv, make=inputs.channels, **_ELEMENTWISE),
    _problem(attention, **_CAUSAL),
    _problem(sigmoid_attention, **_CAUSAL),
    _problem(
        rotary_embedding,
        make=inputs.rotary_inputs,
        moved=counts.rotary_bytes,
        operations=counts.rotary_operations,
        output_like="x",
        constants=("cos", "sin"),
    ),
    _annotated(
        multiaxis_rotary,
        make=inputs.multiaxis_inputs,
        moved=counts.multiaxis_bytes,
        operations=counts.rotary_operations,
        output_like="x",
        constants=("cos", "sin", "position_ids", "axes"),
    ),
    Problem(
        cache_append,
        ("contiguous", "paged"),
        inputs.cached,
        counts.append_bytes,
        counts.no_operations,
        forms=("dense",),
        forward_only=True,
    ),
    _annotated(hgrn, output_like="x"),
    _annotated(log_linear_attn),
    _annotated(momentum_delta_rule, unit=("k", "p")),
    _annotated(titans, "momentum_delta_rule", unit=("k",)),
    _annotated(mesa_net, unit=("k",)),
    # It normalizes the outputs of a model of zeros, so gradients are multiplied by 1 / sqrt(eps):
    # with the default they overflow float16.
    _annotated(ttt_linear, unit=("k",), options={"eps": 1e-2}),
    _pairs(based),
    _pairs(rebased),
    _pairs(stickbreaking_attn),
    _pairs(path_attn, unit=("w",)),
    _pairs(wall_attn),
    _pairs(parallax, 2, 2),
    _pairs(deltaformer, 2, 2),
    _pairs(differential_attention, 2, options={"causal": True}),
    _annotated(
        selected_attention,
        make=inputs.selected,
        output_like=_queries_like("v"),
        constants=("indices",),
    ),
    _annotated(
        paged_attention, make=inputs.paged, output_like=_queries_like("v_pages"), forward_only=True
    ),
    _annotated(merge_attention, output_like="o_a"),
    _annotated(attnres, sizes={"L": 8}, output_like=lambda given: given["x"][:, :, 0]),
    _annotated(feature_map, options={"kind": "elu"}, output_like="x"),
    _annotated(decay_gate, output_like=lambda given: given["x"].float()),
    _annotated(rms_norm_gated, output_like="x"),
    _annotated(cumsum, moved=counts.sums_bytes(), output_like="x"),
    _annotated(
        mean_pooling,
        moved=counts.sums_bytes(64),
        options={"chunk_size": 64},
        output_like=lambda given: given["x"][:, ::64],
    ),
    _annotated(solve_tril, make=inputs.triangles, output_like="A"),
)
PROBLEMS = {problem.function.__name__: problem for problem in _PROBLEMS}
