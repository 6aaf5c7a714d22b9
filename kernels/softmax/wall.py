"""Wall attention in tiles: each channel of a key decays on its way to the query.

Tokens are cut into chunks of C. With P_i = Σ_{t <= i} g_t and R_j = Σ_{t > j} g_t over the tokens
of one chunk, `kernels.linear.channel_gates.decay_within` decays queries from the start and keys to
the end of their own, so that no exponent is above 0,

    q'_i = scale exp(P_i) ∘ q_i        k'_j = exp(R_j) ∘ k_j
    s_ij = (q'_i ∘ A) · k'_j,    A = Π exp(P_C) of the chunks between those of i and j

and has the products of all pairs of one chunk. A program walks from its own chunk to farther ones,
and A gains a factor at each step.

Backward, with dS = P ∘ (dO Vᵀ - δ), a gate at t of chunk m gets q'_i ∘ dq'_i of the queries from t
on in its chunk, k'_j ∘ dk'_j of the keys before t, what the pairs of its chunk pass over it, and of
the chunks on its two sides

    Σ_{b > m > a} X_ba,    X_ba = Σ_{i in b} (q'_i ∘ A) ∘ Σ_{j in a} dS_ij k'_j

which is a sum of its own and no difference of larger ones. So is that of the gates `gs` of heads,
with 1 in the place of q'_i ∘ k'_j.
"""

from typing import Any, Literal, NamedTuple, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.differentiable import differentiable
from kernels.linear.channel_gates import decay_within
from kernels.linear.tiles import blocks
from kernels.primitives.chunks import Chunks, cut
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.layout import contiguous
from kernels.primitives.product import TRITON_DTYPES
from kernels.recurrence import StatelessOptions
from kernels.softmax.attention import sink_gradient
from kernels.softmax.chunked import sum_between
from kernels.softmax.gates import cumulative_gates
from kernels.softmax.pairs import pairs, shapes
from kernels.softmax.wall_backward import by_key, queries_backward, within_backward
from kernels.softmax.wall_walk import by_query
from kernels.tiles import cdiv, next_power_of_2


class _Call(NamedTuple):
    """Arguments and keywords that the kernels of a call share."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    passed: Tensor
    scores: Tensor
    gates: tuple[Tensor | None, Tensor | None, Tensor | None]
    chunks: Chunks
    entry: tiles.Entry
    window: int
    longest: int
    constants: dict[str, Any]

    def shape(self, kernel: str) -> dict[str, int]:
        """The slices of K and V of a kernel, and how it is launched."""
        tile, (key_dim, value_dim) = self.entry.of(kernel), self.dims
        least = tile.narrowest(self.v.dtype.itemsize)
        BK, BV = (
            max(least, min(next_power_of_2(dim), widest))
            for dim, widest in ((key_dim, tile.keys), (value_dim, tile.features))
        )
        return {
            "C": self.entry.tokens,
            "BK": BK,
            "PARTS": cdiv(key_dim, BK),
            "BV": BV,
            "PAD_V": max(least, next_power_of_2(value_dim)),
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Window, sequences, tokens, heads, and heads that share values."""
        tokens, heads = self.g.shape[1:3]
        return self.window, self.chunks.sequences, tokens, heads, heads // self.v.shape[2]

    @property
    def dims(self) -> tuple[int, int]:
        return self.g.shape[3], self.v.shape[3]


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, window: int | None, entry: tiles.Entry, pieces: bool,
) -> tuple[_Call, Tensor, Tensor]:  # fmt: skip
    """The call, and q and k as they came, each head with its own keys."""
    batch, tokens, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    q, k, v, g = contiguous(q, of_each_head(k, heads), v, g)
    chunks = cut(batch, tokens, cu_seqlens, entry.tokens)
    decayed, _, _ = decay_within(
        q, k, g, chunks, scale=scale, tile=entry, reads_only=False, fine=True, pieces=pieces
    )
    constants = {
        "GATED": gs is not None,
        "PACKED": cu_seqlens is not None,
        "DTYPE": TRITON_DTYPES[q.dtype],
    }
    call = _Call(
        decayed.q, decayed.k, v, g, decayed.passed, decayed.scores,
        (None, None, None) if gs is None else cumulative_gates(gs, cu_seqlens), chunks, entry,
        # Distances are below the limit, and a wider window could overflow.
        tokens + entry.tokens if window is None else min(window, tokens + entry.tokens),
        longest, constants,
    )  # fmt: skip
    return call, q, k


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, window: int | None, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if o.numel() == 0:
        return [o]
    entry = tiles.TABLE["wall_attn", "parallel"][tile]
    call, _, _ = _prepare(q, k, v, g, gs, cu_seqlens, scale, window, entry, False)
    by_query[(call.chunks.count * q.shape[2],)](
        call.q, call.k, call.v, o, call.passed, call.scores, o, o, o, sink,
        *call.gates, cu_seqlens, *call.sizes, call.chunks.count, *call.dims,
        GRADIENT=False, SINK=sink is not None, **call.constants, **call.shape("by_query"),
    )  # fmt: skip
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, window: int | None, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, key_dim = q.shape
    groups = k.shape[2]
    dq, dg = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, g))
    dgs = None if gs is None else gs.new_empty(gs.shape)
    if dq.numel() == 0:
        nothing = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (k, v))
        return [dq, *nothing, dg, dgs, None if sink is None else torch.zeros_like(sink), None]
    (do,) = contiguous(d0)
    entry = tiles.TABLE["wall_attn", "parallel"][tile]
    entry = entry.kernels.get("backward", entry)
    call, q, k = _prepare(q, k, v, g, gs, cu_seqlens, scale, window, entry, True)
    chunks, length = call.chunks, call.entry.tokens
    gated, count = gs is not None, chunks.count
    widest = cdiv(call.longest, length)
    terms = q.new_empty(3, batch, heads, tokens, dtype=torch.float32)
    rows, columns = terms.new_empty(2, batch, heads, tokens if gated else 0)
    dq_decayed, dk_decayed = terms.new_empty(2, *q.shape)
    dscores = torch.empty_like(call.scores)
    through = terms.new_empty(count, heads, key_dim + gated)
    # Behind a window nothing is written.
    between = (terms.new_empty if window is None else terms.new_zeros)(
        count, heads, widest, key_dim + gated
    )
    by_query[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, call.scores, do, dscores, terms, sink,
        *call.gates, cu_seqlens, *call.sizes, count, *call.dims,
        GRADIENT=True, SINK=sink is not None, **call.constants, **call.shape("by_query"),
    )  # fmt: skip
    queries_backward[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, terms, dq_decayed, rows, between,
        *call.gates, cu_seqlens, *call.sizes, count, widest, *call.dims, **call.constants,
        **call.shape("queries_backward"),
    )  # fmt: skip
    each_head = keys_gradient_dtype(v, heads)
    dk = k.new_empty(k.shape, dtype=each_head)
    dv = v.new_empty(*q.shape[:3], v.shape[3], dtype=each_head)
    by_key[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, call.scores, dk_decayed, dv, columns,
        terms, *call.gates, cu_seqlens, *call.sizes, *call.dims, **call.constants,
        **call.shape("by_key"),
    )  # fmt: skip
    where = cu_seqlens, chunks.sequences, tokens, heads
    packed = cu_seqlens is not None
    block = min(128, next_power_of_2(key_dim + gated))
    sum_between[(count * heads * cdiv(key_dim + gated, block),)](
        between, through, *where, widest, key_dim + gated,
        C=length, BLOCK=block, PACKED=packed,
    )  # fmt: skip
    own = call.entry.of("within")
    BK, _ = blocks(key_dim, key_dim, own, q.dtype)
    within_backward[(count * heads * cdiv(key_dim, BK),)](
        q, k, call.g, dq_decayed, dk_decayed, through, dscores, rows, columns,
        dq, dk, dg, dgs, cu_seqlens, scale, *where[1:], key_dim,
        C=length, BK=BK, LEVELS=length.bit_length() - 1, GATED=gated, PACKED=packed,
        num_warps=own.num_warps, num_stages=1,
    )  # fmt: skip
    dk, dv = (of_each_group(x, groups).to(v.dtype) for x in (dk, dv))
    dsink = None if sink is None else sink_gradient(sink, terms[:2], terms[2])
    return [dq, dk, dv, dg, dgs, dsink, None]


_wall = differentiable("wall_parallel", _forward, _backward, shapes, outputs=1)


def _of_contiguous(*, gs: Tensor | None, sink: Tensor | None, **given: Any) -> Tensor:
    gs, sink = contiguous(gs, sink)
    o: Tensor = _wall(**given, gs=gs, sink=sink)
    return o


@pairs(
    _of_contiguous,
    about="A gate g below -128 is taken for -128, whose exponential is 0 in float32, and a gs "
    "below -2^17 for -inf. Keys, queries and their gradients are kept once more in float32, each "
    "head with its own keys; the backward pass allocates K numbers for each pair of chunks of 16 "
    "or 32 tokens of a head.",
)
def wall_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    g: Float[Tensor, "B T H K"],
    *,
    gs: Float[Tensor, "B T H"] | None = None,
    sink: Float[Tensor, "H"] | None = None,
    window: int | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention to keys that decay channel by channel, `reference.wall_attn`."""
