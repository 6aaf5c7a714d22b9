"""Gates inside an op: the logarithm of a decay from what a layer projects.

A program has some tokens of one head. With y = A z, s = sigmoid, and dg what comes in,

    dx = -dg A s(z),                     dA_log = Σ dg g           without a bound b
    dx = dg b A s(y) s(-y),              dA_log = Σ dg b y s(y) s(-y)
    ddt_bias = Σ dx
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_number, is_normal
from kernels.differentiable import differentiable
from kernels.fused import fused
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _softplus(z):
    """`max(z, 0) + log(1 + e)` with `e = exp(-|z|)`, to the last digits of small e.

    log(1 + e) = 2 artanh(r), r = e / (2 + e) <= 1/3: the first term left out is below 2^-29 of it.
    """
    e = tl.exp(-tl.abs(z))
    r = e / (2.0 + e)
    rr = r * r
    series = rr * (1.0 / 13.0 + rr * (1.0 / 15.0))
    series = rr * (1.0 / 7.0 + rr * (1.0 / 9.0 + rr * (1.0 / 11.0 + series)))
    return tl.maximum(z, 0.0) + 2.0 * r * (1.0 + rr * (1.0 / 3.0 + rr * (1.0 / 5.0 + series)))


@triton.jit
def _slope(y):
    """`sigmoid(y) sigmoid(-y)`."""
    e = tl.exp(-tl.abs(y))
    return e / ((1.0 + e) * (1.0 + e))


@triton.jit(do_not_specialize=["count"])
def _forward(
    x_ptr, A_log_ptr, bias_ptr, g_ptr, bound, count, heads, dim: tl.int32,
    ROWS: tl.constexpr, BD: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """g of ROWS tokens of one head."""
    head = tl.program_id(0) % heads
    rows = (tl.program_id(0) // heads).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    x = load_rows(x_ptr + head * dim, rows, cols, heads * dim, count, dim).to(tl.float32)
    bias = tl.load(bias_ptr + head * dim + cols, mask=cols < dim, other=0.0)
    A = tl.exp(tl.load(A_log_ptr + head))
    z = x + bias[None, :]
    g = bound * tl.sigmoid(A * z) if BOUNDED else -A * _softplus(z)
    store_rows(g_ptr + head * dim, g, rows, cols, heads * dim, count, dim)


@triton.jit(do_not_specialize=["count"])
def _backward(
    x_ptr, A_log_ptr, bias_ptr, dg_ptr, dx_ptr, dA_log_ptr, dbias_ptr, bound, count, heads,
    dim: tl.int32, ROWS: tl.constexpr, BD: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """dx of ROWS tokens of one head, and their parts of dA_log and ddt_bias."""
    head = tl.program_id(0) % heads
    rows = (tl.program_id(0) // heads).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    x = load_rows(x_ptr + head * dim, rows, cols, heads * dim, count, dim).to(tl.float32)
    dg = load_rows(dg_ptr + head * dim, rows, cols, heads * dim, count, dim)
    bias = tl.load(bias_ptr + head * dim + cols, mask=cols < dim, other=0.0)
    A = tl.exp(tl.load(A_log_ptr + head))
    z = x + bias[None, :]
    if BOUNDED:
        dy = dg * bound * _slope(A * z)
        dz = dy * A
        # Not dy · (A z), which is 0 · inf where A z overflows.
        dA_log = dz * z
    else:
        dA_log = dg * (-A * _softplus(z))
        dz = dg * -A * tl.sigmoid(z)
    store_rows(dx_ptr + head * dim, dz, rows, cols, heads * dim, count, dim)
    # Rows past the end have dg = 0.
    part = tl.program_id(0).to(tl.int64)
    tl.store(dA_log_ptr + part, tl.sum(dA_log))
    tl.store(dbias_ptr + part * dim + cols, tl.sum(dz, 0), mask=cols < dim)


def _launch(kernel, x: Tensor, *others: Tensor, bound: float | None, tile: int) -> None:
    batch, tokens, heads, dim = x.shape
    kernel[(parts_of(x, tile) * heads,)](
        x, *others, 0.0 if bound is None else bound, batch * tokens, heads, dim,
        BOUNDED=bound is not None, **_blocks(dim, tile),
    )  # fmt: skip


def _blocks(dim: int, tile: int) -> dict[str, int]:
    entry = tiles.TABLE["decay_gate", "fused"][tile]
    BD = next_power_of_2(dim)
    return {"ROWS": entry.tokens * max(1, 64 // BD), "BD": BD, "num_warps": entry.num_warps}


def parts_of(x: Tensor, tile: int) -> int:
    """How many programs share the tokens of a head."""
    batch, tokens, _, dim = x.shape
    return cdiv(batch * tokens, _blocks(dim, tile)["ROWS"])


def _filled(x: Tensor, A_log: Tensor | None, dt_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The parameters in float32, 0 where there are none."""
    heads, dim = x.shape[2:]
    A = x.new_zeros(heads, dtype=torch.float32) if A_log is None else A_log.float()
    bias = x.new_zeros(heads, dim, dtype=torch.float32) if dt_bias is None else dt_bias.float()
    return A.contiguous(), bias.contiguous()


def _forward_of(
    *, x: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, bound: float | None, tile: int
) -> list[Tensor | None]:
    g = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _launch(_forward, x.contiguous(), *_filled(x, A_log, dt_bias), g, bound=bound, tile=tile)
    return [g]


def _backward_of(
    *, x: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, bound: float | None, tile: int,
    d0: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    x, dg = contiguous(x, d0)
    dx = torch.empty_like(x)
    parts, (heads, dim) = parts_of(x, tile), x.shape[2:]
    dA_log = empty_parts(parts, (heads,), torch.float32, x.device)
    dbias = empty_parts(parts, (heads, dim), torch.float32, x.device)
    _launch(
        _backward, x, *_filled(x, A_log, dt_bias), dg, dx, dA_log, dbias, bound=bound, tile=tile
    )  # fmt: skip
    return [
        dx,
        None if A_log is None else add_parts(dA_log, A_log.dtype).to(A_log.dtype),
        None if dt_bias is None else add_parts(dbias, dt_bias.dtype).to(dt_bias.dtype),
    ]


gate = differentiable(
    "decay_gate_fused",
    _forward_of,
    _backward_of,
    lambda given: [(given["x"].shape, torch.float32)],
    outputs=1,
)


def compute(*, lower_bound: float | None, **given: Any) -> Tensor:
    if lower_bound is not None:
        check_number("lower_bound", lower_bound, optional=True)
        if not is_normal(-lower_bound):
            wanted = "expected a negative finite number, normal in float32, or None"
            raise ValueError(f"lower_bound: {lower_bound}, {wanted}")
        lower_bound = float(lower_bound)
    return gate(bound=lower_bound, **given)


@fused(
    compute,
    output="g",
    widest=256,
    texts={"g": "float32, contiguous."},
    raises=["a lower_bound that is not negative and normal in float32"],
)
def decay_gate(
    x: Float[Tensor, "B T H D"],
    A_log: Float[Tensor, "H"] | None = None,
    dt_bias: Float[Tensor, "H D"] | None = None,
    *,
    lower_bound: float | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """The logarithm of a decay from any number, `reference.decay_gate`."""
