"""Merge the attention over two sets of keys: one program per block of rows."""

import math
from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_dtype, check_flags, check_one_dtype, check_range
from kernels.differentiable import differentiable
from kernels.modes import check_mode
from kernels.op import op
from kernels.primitives.layout import contiguous
from kernels.primitives.rows import load_rows, store_rows
from kernels.softmax.arguments import MAX_DIM
from kernels.softmax.logits import LOG2E, finite_maximum
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _weights(a_ptr, b_ptr, place, inside, unit):
    """The weights of both parts, and the LSE of their union, which is that of the other part to
    the last bit if one is empty.

    Args:
        unit: of the LSEs, in powers of 2.
    """
    a = tl.load(a_ptr + place, mask=inside, other=float("-inf")).to(tl.float32)
    b = tl.load(b_ptr + place, mask=inside, other=float("-inf")).to(tl.float32)
    top = finite_maximum(tl.maximum(a, b))
    a = tl.exp2((a - top) * unit)
    b = tl.exp2((b - top) * unit)
    weight_sum = a + b
    lse = top + tl.log2(weight_sum) / unit
    weight_sum = tl.where(weight_sum == 0.0, 1.0, weight_sum)
    return a / weight_sum, b / weight_sum, lse


@triton.jit
def _places(rows, tokens, heads: tl.int32):
    """The place in `[B, H, T]` of the LSE of a row of `[B, T, H]`."""
    head = rows % heads
    token = rows // heads
    return (token // tokens * heads + head) * tokens + token % tokens


@triton.jit
def _weighed(weight, o):
    """`weight · o`; 0 where the weight is 0, since nothing is known of the o of no keys."""
    return tl.where(weight[:, None] == 0.0, 0.0, weight[:, None] * o.to(tl.float32))


@triton.jit(do_not_specialize=["count", "tokens"])
def merge_forward(
    o_a_ptr, lse_a_ptr, o_b_ptr, lse_b_ptr, o_ptr, lse_ptr, unit, count, tokens,
    heads: tl.int32, dim: tl.int32, ROWS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """o and LSE of ROWS rows."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PAD)
    place = _places(rows, tokens, heads)
    a, b, lse = _weights(lse_a_ptr, lse_b_ptr, place, rows < count, unit)
    o_a = load_rows(o_a_ptr, rows, dims, dim, count, dim)
    o_b = load_rows(o_b_ptr, rows, dims, dim, count, dim)
    store_rows(o_ptr, _weighed(a, o_a) + _weighed(b, o_b), rows, dims, dim, count, dim)
    tl.store(lse_ptr + place, lse, mask=rows < count)


@triton.jit(do_not_specialize=["count", "tokens"])
def merge_backward(
    o_a_ptr, lse_a_ptr, o_b_ptr, lse_b_ptr, do_ptr, dlse_ptr,
    do_a_ptr, dlse_a_ptr, do_b_ptr, dlse_b_ptr, unit, natural, count, tokens,
    heads: tl.int32, dim: tl.int32, ROWS: tl.constexpr, PAD: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """`do_x = w_x do` and `dlse_x = w_x (dlse + do · (o_x - o))`.

    With the weights of both, `o_a - o = w_b (o_a - o_b)`.

    Args:
        natural: the unit of the LSEs in natural logarithms.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PAD)
    inside = rows < count
    place = _places(rows, tokens, heads)
    a, b, _ = _weights(lse_a_ptr, lse_b_ptr, place, inside, unit)
    do = load_rows(do_ptr, rows, dims, dim, count, dim).to(tl.float32)
    store_rows(do_a_ptr, a[:, None] * do, rows, dims, dim, count, dim)
    store_rows(do_b_ptr, b[:, None] * do, rows, dims, dim, count, dim)
    o_a = load_rows(o_a_ptr, rows, dims, dim, count, dim).to(tl.float32)
    o_b = load_rows(o_b_ptr, rows, dims, dim, count, dim).to(tl.float32)
    both = (a * b)[:, None]
    between = natural * tl.sum(tl.where(both == 0.0, 0.0, both * (o_a - o_b)) * do, 1)
    dlse_a = between
    dlse_b = -between
    if LSE:
        dlse = tl.load(dlse_ptr + place, mask=inside, other=0.0)
        dlse_a += a * dlse
        dlse_b += b * dlse
    tl.store(dlse_a_ptr + place, dlse_a, mask=inside)
    tl.store(dlse_b_ptr + place, dlse_b, mask=inside)


def _launch(kernel, tensors, outputs, base2: bool, *numbers: float, tile: int, **constants) -> None:
    tokens, heads, dim = outputs[0].shape[1:]
    entry = tiles.TABLE["merge_attention", "fused"][tile]
    count = outputs[0].numel() // dim
    if count:
        tensors = contiguous(*tensors)
        kernel[(cdiv(count, entry.tokens),)](
            *tensors, *outputs, 1.0 if base2 else LOG2E.value, *numbers,
            count, tokens, heads, dim,
            ROWS=entry.tokens, PAD=next_power_of_2(dim), num_warps=entry.num_warps, **constants,
        )  # fmt: skip


def _forward(
    o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, base2: bool, tile: int
) -> list[Tensor]:
    outputs = [_like(o_a), _like(lse_a, torch.float32)]
    _launch(merge_forward, (o_a, lse_a, o_b, lse_b), outputs, base2, tile=tile)
    return outputs


def _backward(o_a, lse_a, o_b, lse_b, d0, d1, base2: bool, tile: int) -> list[Tensor]:
    gradients = [_like(x) for x in (o_a, lse_a, o_b, lse_b)]
    _launch(
        merge_backward, (o_a, lse_a, o_b, lse_b, d0, d1), gradients, base2,
        math.log(2) if base2 else 1.0, tile=tile, LSE=d1 is not None,
    )  # fmt: skip
    return gradients


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


_merge = differentiable(
    "merge_attention_fused",
    _forward,
    _backward,
    lambda given: [
        (given["o_a"].shape, given["o_a"].dtype),
        (given["lse_a"].shape, torch.float32),
    ],
    outputs=2,
)


def compute(
    *,
    o_a: Tensor,
    lse_a: Tensor,
    o_b: Tensor,
    lse_b: Tensor,
    base2: bool,
    mode: str,
    tile: int | None,
) -> tuple[Tensor, Tensor]:
    dim = bind_dims(
        o_a=(o_a, "B T H V"), lse_a=(lse_a, "B H T"), o_b=(o_b, "B T H V"), lse_b=(lse_b, "B H T")
    )["V"]
    dtype = check_one_dtype(o_a=o_a, o_b=o_b)
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        check_dtype(name, lse, dtype, torch.float32)
    check_range("V (the last dim of o_a)", dim, 1, MAX_DIM)
    check_flags(base2=base2)
    check_mode(mode, "fused")
    tile = tiles.choose(
        "merge_attention", "fused", dim=dim, dtype=dtype, device=o_a.device, tile=tile
    )
    merged: tuple[Tensor, Tensor] = _merge(o_a, lse_a, o_b, lse_b, base2, tile)
    return merged


@op(
    compute,
    outputs=("o", "lse"),
    about=f"Differentiable once. V is 1 to {MAX_DIM}.",
    same_dtype=("o_a", "o_b"),
    texts={"lse": "float32."},
    raises=[f"V outside 1 to {MAX_DIM}"],
)
def merge_attention(
    o_a: Float[Tensor, "B T H V"],
    lse_a: Float[Tensor, "B H T"],
    o_b: Float[Tensor, "B T H V"],
    lse_b: Float[Tensor, "B H T"],
    *,
    base2: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"]]:
    """Merge the attention over two disjoint sets of keys, `reference.merge_attention`."""
