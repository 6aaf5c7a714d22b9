"""The hierarchically gated recurrent network: a state of one number per channel.

A program owns a tile of channels of one sequence and walks its tokens. Backwards, with D the
gradient of h_t,

    D_t = do_t + exp(g_{t+1}) ∘ D_{t+1},    dx_t = D_t,    dg_t = exp(g_t) ∘ h_{t-1} ∘ D_t

and a first walk keeps h_{t-1}: a walk backwards would divide by exp(g_t), which may be 0.

The same kernels run in the log of a sum, `z_t = log(exp(z_{t-1} + g_t) + exp(x_t))`, where

    D_t  = dz_t + sigmoid(z_t + g_{t+1} - x_{t+1}) ∘ D_{t+1}
    dx_t = sigmoid(x_t - z_{t-1} - g_t) ∘ D_t,    dg_t = sigmoid(z_{t-1} + g_t - x_t) ∘ D_t
"""

from typing import Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import describe
from kernels.differentiable import differentiable
from kernels.modes import check_mode
from kernels.primitives.chunks import locate_sequence
from kernels.primitives.layout import contiguous
from kernels.primitives.rows import load_row
from kernels.primitives.states import optional, output_and_states
from kernels.recurrence import StateOptions, stateful
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _step(h, x, g, LOG: tl.constexpr):
    """Return h_t."""
    if LOG:
        top = tl.maximum(h + g, x)
        top = tl.where(top == float("-inf"), 0.0, top)
        h = top + tl.log(tl.exp(h + g - top) + tl.exp(x - top))
    else:
        h = tl.exp(g) * h + x
    return h


@triton.jit
def _slopes(h, x, g, LOG: tl.constexpr):
    """The derivatives of h_t by what is left of h_{t-1}, and by x_t."""
    if LOG:
        # The sigmoid of a difference: an ulp of a large sum would be an error of its exponential.
        nothing = (h + g == float("-inf")) & (x == float("-inf"))
        ahead = x - (h + g)
        kept = tl.where(nothing, 0.0, tl.sigmoid(-ahead))
        taken = tl.where(nothing, 0.0, tl.sigmoid(ahead))
    else:
        kept = tl.exp(g)
        taken = tl.full(x.shape, 1.0, tl.float32)
    return kept, taken


@triton.jit
def _start(
    cu_seqlens_ptr, initial_ptr, use_initial, tokens, dim,
    BD: tl.constexpr, LOG: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The sequence and the channels of a program, and their initial state."""
    parts = tl.cdiv(dim, BD)
    sequence = (tl.program_id(0) // parts).to(tl.int64)
    first, length, _ = locate_sequence(sequence, cu_seqlens_ptr, tokens, 1, PACKED)
    cols = (tl.program_id(0) % parts) * BD + tl.arange(0, BD)
    inside = cols < dim
    other = float("-inf") if LOG else 0.0
    h = tl.load(initial_ptr + sequence * dim + cols, mask=inside & use_initial, other=other)
    return sequence, first, length, cols, inside, h


@triton.jit(do_not_specialize=["tokens"])
def _forward(
    x_ptr, g_ptr, cu_seqlens_ptr, initial_ptr, use_initial, o_ptr, final_ptr, store_final,
    tokens, dim: tl.int32,
    BD: tl.constexpr, LOG: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """o of one sequence, and the final state."""
    sequence, first, length, cols, inside, h = _start(
        cu_seqlens_ptr, initial_ptr, use_initial, tokens, dim, BD, LOG, PACKED
    )
    for t in range(length):
        row = first + t
        x = load_row(x_ptr, row, dim, cols, inside)
        g = load_row(g_ptr, row, dim, cols, inside)
        h = _step(h, x, g, LOG)
        tl.store(o_ptr + row * dim + cols, h, mask=inside)
    tl.store(final_ptr + sequence * dim + cols, h, mask=inside & store_final)


@triton.jit(do_not_specialize=["tokens"])
def _backward(
    x_ptr, g_ptr, cu_seqlens_ptr, initial_ptr, use_initial, do_ptr, dfinal_ptr, use_dfinal,
    dx_ptr, dg_ptr, dinitial_ptr, store_dinitial, before_ptr, tokens, dim: tl.int32,
    BD: tl.constexpr, LOG: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dx and dg of one sequence, and the gradient of its initial state; `before` keeps h_{t-1}."""
    sequence, first, length, cols, inside, h = _start(
        cu_seqlens_ptr, initial_ptr, use_initial, tokens, dim, BD, LOG, PACKED
    )
    for t in range(length):
        row = first + t
        tl.store(before_ptr + row * dim + cols, h, mask=inside)
        x = load_row(x_ptr, row, dim, cols, inside)
        g = load_row(g_ptr, row, dim, cols, inside)
        h = _step(h, x, g, LOG)
    # A cell may be read by another thread than the one that wrote it.
    tl.debug_barrier()
    D = tl.load(dfinal_ptr + sequence * dim + cols, mask=inside & use_dfinal, other=0.0)
    for back in range(length):
        row = first + length - 1 - back
        x = load_row(x_ptr, row, dim, cols, inside)
        g = load_row(g_ptr, row, dim, cols, inside)
        h = tl.load(before_ptr + row * dim + cols, mask=inside, other=0.0)
        kept, taken = _slopes(h, x, g, LOG)
        D += load_row(do_ptr, row, dim, cols, inside)
        tl.store(dx_ptr + row * dim + cols, taken * D, mask=inside)
        D = kept * D
        dg = D if LOG else h * D
        tl.store(dg_ptr + row * dim + cols, dg, mask=inside)
    tl.store(dinitial_ptr + sequence * dim + cols, D, mask=inside & store_dinitial)


def _blocks(dim: int, tile: int) -> dict[str, int]:
    entry = tiles.TABLE["hgrn", "fused_recurrent"][tile]
    return {
        "BD": min(entry.features, max(16, next_power_of_2(dim))),
        "num_warps": entry.num_warps,
    }


def _forward_of(
    *, x: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, log: bool,
    output_final_state: bool, tile: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    arguments.check_boundaries("cu_seqlens", cu_seqlens, x.shape[1])
    batch, tokens, dim = x.shape
    sequences = arguments.count_sequences(batch, cu_seqlens)
    blocks = _blocks(dim, tile)
    o = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    final = x.new_empty(sequences, dim, dtype=torch.float32) if output_final_state else None
    _forward[(sequences * cdiv(dim, blocks["BD"]),)](
        *contiguous(x, g), cu_seqlens, *optional(initial_state, x), o, *optional(final, x),
        tokens, dim, LOG=log, PACKED=cu_seqlens is not None, **blocks,
    )  # fmt: skip
    return o, final


def _backward_of(
    *, x: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, log: bool,
    output_final_state: bool, tile: int, d0: Tensor, d1: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    batch, tokens, dim = x.shape
    sequences = arguments.count_sequences(batch, cu_seqlens)
    blocks = _blocks(dim, tile)
    dx, dg = (torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in (x, g))
    dinitial = None
    if initial_state is not None:
        dinitial = x.new_empty(sequences, dim, dtype=torch.float32)
    before = x.new_empty(x.shape, dtype=torch.float32)
    _backward[(sequences * cdiv(dim, blocks["BD"]),)](
        *contiguous(x, g), cu_seqlens, *optional(initial_state, x), d0.contiguous(),
        *optional(d1, x), dx, dg, *optional(dinitial, x), before,
        tokens, dim, LOG=log, PACKED=cu_seqlens is not None, **blocks,
    )  # fmt: skip
    return dx, dg, dinitial, None


def _shapes(given):
    x = given["x"]
    return output_and_states(given, x, x.dtype, (x.shape[2],))


_scan = differentiable("hgrn_fused_recurrent", _forward_of, _backward_of, _shapes, outputs=2)


def scan(
    x: Tensor, g: Tensor, *, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None, log: bool = False, tile: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Walk checked arguments: `hgrn`, or with `log` the logarithm of a sum (see above).

    Without a state the logarithm starts at -inf.
    """
    tile = tiles.choose(
        "hgrn", "fused_recurrent", dim=1, dtype=x.dtype, device=x.device, tile=tile
    )  # fmt: skip
    o, final_state = _scan(x, g, initial_state, cu_seqlens, log, output_final_state, tile)
    return o, final_state if output_final_state else None


def checked(
    *, x: Tensor, g: Tensor, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None, mode: str, tile: int | None, log: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Check the arguments, then `scan` them."""
    arguments.check_flags(output_final_state=output_final_state)
    sizes = arguments.bind_dims(
        x=(x, "B T D"), g=(g, "B T D"), initial_state=(initial_state, "N D")
    )  # fmt: skip
    arguments.check_dtype("g", g, torch.float32, arguments.check_one_dtype(x=x))
    arguments.check_dtype("initial_state", initial_state, torch.float32)
    cu_seqlens = arguments.check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], x.device)
    sequences = arguments.count_sequences(sizes["B"], cu_seqlens)
    if initial_state is not None and len(initial_state) != sequences:
        wanted = f"expected [N, D] with N={sequences}, D={sizes['D']}"
        raise ValueError(f"initial_state: {describe(initial_state)}, {wanted}")
    check_mode(mode, "fused_recurrent")
    return scan(
        x, g, initial_state=initial_state, output_final_state=output_final_state,
        cu_seqlens=cu_seqlens, log=log, tile=tile,
    )  # fmt: skip


@stateful(
    checked,
    outputs=("o", "final_state"),
)
def hgrn(
    x: Float[Tensor, "B T D"],
    g: Float[Tensor, "B T D"],
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"] | None]:
    """A gated recurrence of each channel by itself, `reference.hgrn`."""
