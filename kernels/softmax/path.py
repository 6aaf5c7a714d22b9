"""PaTH attention in tiles: keys are reflected on their way to the query.

Tokens are cut into spans: `path_spans` has what the tokens of one do to keys and queries. Queries
then walk over the spans before their own, `path_walk`.

Backward, queries walk as they do forwards, and come back with their gradient. A launch is for the
queries of RUN spans of every sequence, as all of them add to the same gradients: each is summed in
a fixed order, and what is kept is linear in T, as X and dX behind a span are kept in the places of
that span's tokens.

Source: Yang et al., PaTH Attention, arXiv 2505.16381, section 3.2.
"""

from typing import Any, Literal, NamedTuple, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.differentiable import differentiable
from kernels.primitives.chunks import cut
from kernels.primitives.layout import contiguous
from kernels.primitives.pieces import empty_pieces
from kernels.recurrence import StatelessOptions
from kernels.softmax.pairs import pairs, shapes
from kernels.softmax.path_spans import Call, Within
from kernels.softmax.path_spans_backward import (
    add_system,
    by_column,
    by_pair,
    by_row,
    solve_backward,
)
from kernels.softmax.path_walk import RUN, attend
from kernels.softmax.path_walk_backward import (
    by_key,
    cross_backward,
    gates_backward,
    own_values,
    walk_back,
)
from kernels.tiles import cdiv


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if o.numel() == 0:
        return [o]
    q, k, v, w, beta = contiguous(q, k, v, w, beta)
    heads = q.shape[2]
    entry = tiles.TABLE["path_attn", "parallel"][tile]
    call = Call(q, v, g, cu_seqlens, longest, entry)
    x = empty_pieces(q, 2, *q.shape)
    within = call.within(k, w, beta, x, scale)
    queries = call.tile("attend")
    shape = call.walk("attend")
    count = cut(*q.shape[:2], cu_seqlens, queries.tokens).count
    attend[(count * heads,)](
        x, within.k, within.m, v, o, within.scores, o, o, o, *call.gates, cu_seqlens,
        0, *call.of_queries, call.spans.count, count, call.key_dim, call.value_dim,
        GRADIENT=False, BQ=queries.tokens, BN=queries.keys, C=call.block.tokens,
        SLICE=min(shape["BK"], 64), **shape,
    )  # fmt: skip
    return [o]


class _Walked(NamedTuple):
    """Gradients that the walk of the queries leaves to the spans, in float32.

    Args:
        dq, dk, dv: of X at the start of its span, of K' and of the values.
        dscores: of the products of pairs of one span.
        dm: of M.
        rows, columns: of gates, summed over the keys of a query and over the queries of a key, for
            pairs of two spans.
        through: of the gates of a whole span, from queries that pass it.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dscores: Tensor
    dm: Tensor
    rows: Tensor
    columns: Tensor
    through: Tensor


def _walk(call: Call, within: Within, x: Tensor, v: Tensor, do: Tensor) -> _Walked:
    """Walk with the queries over all spans before their own, and back with their gradients."""
    q, cu_seqlens, span, spans = call.q, call.cu_seqlens, call.span, call.spans.count
    batch, tokens, heads, key_dim = q.shape
    sizes, dims = call.of_queries, (key_dim, call.value_dim)
    new, zeros = within.scores.new_empty, within.scores.new_zeros
    gated = tokens if call.gated else 0
    walked = _Walked(
        dq=new(q.shape),
        dk=zeros(batch, tokens, call.groups, key_dim),
        dv=zeros(v.shape),
        dscores=new(within.scores.shape),
        dm=zeros(spans, call.groups, key_dim, key_dim),
        rows=zeros(batch, heads, gated),
        columns=zeros(batch, heads, gated),
        through=zeros(spans, heads if call.gated else 0),
    )
    dx = empty_pieces(q, RUN, *q.shape)
    terms, sums = new(3, batch, heads, tokens), new(RUN, batch, heads, gated)
    kept = q.dtype if q.dtype == torch.bfloat16 else torch.float32
    weights, between = q.new_empty(2, RUN, *walked.dscores.shape, dtype=kept)
    out, back, keyed, cross = map(call.tile, ("walk", "return", "by_key", "cross"))
    of_out, of_back, of_keyed, of_cross = map(call.walk, ("walk", "return", "by_key", "cross"))
    del of_keyed["GATED"]
    columns = zeros(RUN * span // back.tokens, *walked.columns.shape)
    for run in range(cdiv(call.longest, RUN * span)):
        queries = call.chunks.sequences * RUN * span * heads
        attend[(queries // out.tokens,)](
            x, within.k, within.m, v, do, within.scores, do, walked.dscores, terms, *call.gates,
            cu_seqlens, run, *sizes, spans, 0, *dims, GRADIENT=True,
            BQ=out.tokens, BN=out.keys, C=call.block.tokens,
            SLICE=min(of_out["BK"], 64), **of_out,
        )  # fmt: skip
        walk_back[(queries // back.tokens,)](
            x, dx, within.k, within.m, v, do, terms, weights, between, walked.dq, walked.rows,
            columns, sums, *call.gates, cu_seqlens, run, *sizes, spans, *dims,
            BQ=back.tokens, BN=back.keys, SLICE=min(of_back["BK"], 64), **of_back,
        )  # fmt: skip
        behind = call.chunks.sequences * ((run + 1) * RUN - 1) * call.groups
        if behind > 0:
            by_key[(behind * span // keyed.tokens,)](
                x, weights, between, do, walked.dk, walked.dv, cu_seqlens, run, *sizes, *dims,
                BN=keyed.tokens, BQ=keyed.keys, **of_keyed,
            )  # fmt: skip
        if call.gated:
            walked.columns.add_(columns.sum(0))
            columns.zero_()
        passed = behind - call.chunks.sequences * call.groups
        if passed > 0:
            cross_backward[(passed * cdiv(key_dim, cross.tokens),)](
                x, dx, walked.dm, sums, walked.through, cu_seqlens, run, *sizes, key_dim,
                C=cross.tokens, **of_cross,
            )  # fmt: skip
    own_values[(call.chunks.count * call.groups,)](
        do, within.scores, walked.dv, cu_seqlens, *sizes, call.value_dim, span,
        C=call.block.tokens, PAD_V=of_out["PAD_V"], num_warps=8, num_stages=1, **call.constants,
    )  # fmt: skip
    return walked


def _gate_gradient(call: Call, walked: _Walked, g: Tensor) -> Tensor:
    dg = torch.empty_like(g)
    gates_backward[(call.chunks.count * g.shape[2],)](
        walked.dscores, walked.rows, walked.columns, walked.through, dg, call.cu_seqlens,
        *call.of_queries[:3], call.span, PACKED=call.cu_seqlens is not None, SPAN=call.span,
        C=call.block.tokens,
    )  # fmt: skip
    return dg


def _through_spans(
    call: Call, within: Within, walked: _Walked, q: Tensor, k: Tensor, w: Tensor, beta: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dw and dbeta (float32), from the gradients of what `path_spans` computes of them.

    It overwrites `within.scores`.
    """
    cu_seqlens, sizes, key_dim, span = call.cu_seqlens, call.of_queries, call.key_dim, call.span
    chunks, groups = call.chunks.count, call.groups
    dq, dk, dw = (torch.empty_like(x) for x in (q, k, w))
    # With fewer, they keep registers in memory.
    more_warps = {**call.blocks, "num_warps": 8}
    k_more, w_more, dz = (torch.empty_like(walked.dk) for _ in range(3))
    e, de, dd = torch.empty_like(walked.dscores), within.scores, torch.empty_like(within.d)
    by_row[(chunks * q.shape[2],)](
        q, k, w, within.z, within.d, walked.dq, walked.dscores, e, de, dq, cu_seqlens, scale,
        *sizes, key_dim, span, **call.blocks,
    )  # fmt: skip
    by_column[(chunks * groups,)](
        q, w, within.z, walked.dq, walked.dscores, e, de, walked.dm, k_more, w_more, dz,
        cu_seqlens, scale, *sizes, key_dim, span, **more_warps,
    )  # fmt: skip
    by_pair[(chunks * groups,)](
        w, walked.dscores, e, walked.dk, dd, cu_seqlens, scale, *sizes, key_dim, span,
        **call.blocks,
    )  # fmt: skip
    del e  # before what follows wants memory
    da, db = (torch.empty_like(dd) for _ in range(2))
    dbeta = torch.empty_like(beta, dtype=torch.float32)
    solve_backward[(call.spans.count * groups,)](
        k, w, beta, within.inverse, dz, dd, da, db, dbeta, cu_seqlens, *call.of_keys, key_dim,
        span, **call.blocks,
    )  # fmt: skip
    add_system[(chunks * groups,)](
        k, w, beta, within.inverse, within.d, dz, walked.dk, da, db, k_more, w_more, dk, dw,
        cu_seqlens, *call.of_keys, key_dim, span, **more_warps,
    )  # fmt: skip
    return dq, dk, dw, dbeta


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    q, k, v, w, beta, g, do = contiguous(q, k, v, w, beta, g, d0)
    if q.numel() == 0:
        return [*(None if x is None else torch.zeros_like(x) for x in (q, k, v, w, beta, g)), None]
    entry = tiles.TABLE["path_attn", "parallel"][tile]
    call = Call(q, v, g, cu_seqlens, longest, entry)
    x = empty_pieces(q, 1 + RUN, *q.shape)
    within = call.within(k, w, beta, x, scale)
    walked = _walk(call, within, x, v, do)
    del x  # before what follows wants memory
    dg = None if g is None else _gate_gradient(call, walked, g)
    dq, dk, dw, dbeta = _through_spans(call, within, walked, q, k, w, beta, scale)
    return [dq, dk, walked.dv.to(v.dtype), dw, dbeta.to(beta.dtype), dg, None]


_path = differentiable("path_parallel", _forward, _backward, shapes, outputs=1)


def _of_contiguous(*, g: Tensor | None, **given: Any) -> Tensor:
    (g,) = contiguous(g)
    o: Tensor = _path(**given, g=g)
    return o


@pairs(
    _of_contiguous,
    about="A gate below -2^17 is taken for -inf. The backward pass has up to four launches for "
    "each span of 32 or 256 tokens of the longest sequence; what it keeps is linear in T.",
)
def path_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    w: Float[Tensor, "B T G K"],
    beta: Float[Tensor, "B T G"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention to keys that are reflected on their way to the query, `reference.path_attn`."""
