"""What is measured of each op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import (
    attention,
    delta_rule,
    dplr,
    gated_delta_rule,
    gla,
    kda,
    l2norm,
    linear_attn,
    rotary_embedding,
    short_conv,
    simple_gla,
)
from kernels.bench import counts, inputs
from kernels.bench.inputs import Tensors
from kernels.bench.shapes import Shape
from kernels.tiles import TABLE


@dataclass(frozen=True)
class Problem:
    """What is measured of an op.

    Args:
        function: the op; its output is what it returns, or the first of what it returns.
        make: random inputs by name.
        moved: bytes of every input, output and gradient, once for each pass that needs it; from the
            shape, the size of an element, and whether the backward pass is included.
        operations: multiplications and additions, from the shape and the same.
        products: whether these are products of matrices that no way to compute the op does without.
        options: further arguments of the op.
        output_like: the input that the output looks like.
        constants: inputs that get no gradient.
    """

    function: Callable[..., Any]
    make: Callable[[Shape, torch.dtype, torch.device], Tensors]
    moved: Callable[[Shape, int, bool], int]
    operations: Callable[[Shape, bool], int]
    products: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    output_like: str = "v"
    constants: tuple[str, ...] = ()


PROBLEMS = {
    "linear_attn": Problem(
        function=linear_attn,
        make=inputs.queries_keys_values,
        moved=counts.linear_bytes,
        operations=counts.linear_operations,
    ),
    "gla": Problem(
        function=gla,
        make=inputs.gated,
        moved=counts.gated_bytes,
        operations=counts.gated_operations,
    ),
    "simple_gla": Problem(
        function=simple_gla,
        make=inputs.gated_heads,
        moved=counts.bytes_with(lambda shape: 1),
        operations=counts.gated_operations,
    ),
    "delta_rule": Problem(
        function=delta_rule,
        make=inputs.delta,
        moved=counts.bytes_with(lambda shape: 1),
        operations=counts.delta_operations,
    ),
    "gated_delta_rule": Problem(
        function=gated_delta_rule,
        make=inputs.gated_delta,
        moved=counts.bytes_with(lambda shape: 2),
        operations=counts.delta_operations,
    ),
    "kda": Problem(
        function=kda,
        make=inputs.kda,
        moved=counts.bytes_with(lambda shape: shape.K + 1),
        operations=counts.delta_operations,
    ),
    "dplr": Problem(
        function=dplr,
        make=inputs.dplr,
        moved=counts.bytes_with(lambda shape: shape.K, rows=2),
        operations=counts.delta_operations,
    ),
    "l2norm": Problem(
        function=l2norm,
        make=inputs.vectors,
        moved=counts.elementwise_bytes,
        operations=counts.elementwise_operations,
        output_like="x",
    ),
    "short_conv": Problem(
        function=short_conv,
        make=inputs.channels,
        moved=counts.elementwise_bytes,
        operations=counts.elementwise_operations,
        output_like="x",
    ),
    "attention": Problem(
        function=attention,
        make=inputs.queries_keys_values,
        moved=counts.attention_bytes,
        operations=counts.attention_operations,
        products=True,
        options={"causal": True},
    ),
    "rotary_embedding": Problem(
        function=rotary_embedding,
        make=inputs.rotary_inputs,
        moved=counts.rotary_bytes,
        operations=counts.rotary_operations,
        output_like="x",
        constants=("cos", "sin"),
    ),
}


def modes(op: str) -> list[str]:
    """The modes that the op has kernels for."""
    return [mode for name, mode in TABLE if name == op]
