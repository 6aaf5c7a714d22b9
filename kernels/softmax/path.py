"""PaTH attention in tiles: keys are reflected on their way to the query.

Tokens are cut into spans: `path_spans` has what the tokens of one do to keys and queries. Queries
then walk over the spans before their own, `path_walk`.

Backward, queries walk as they do forwards, and come back with their gradient. A launch is for the
queries of RUN spans of every sequence, as all of them add to the same gradients: each is summed in
a fixed order, and what is kept is linear in T, as X and dX behind a span are kept in the places of
that span's tokens.

Source: Yang et al., PaTH Attention, arXiv 2505.16381, section 3.2.
"""

from typing import Any, Literal, Unpack

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
from kernels.softmax.path_spans import Call
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
    with torch.cuda.device_of(q):
        entry = tiles.TABLE["path_attn", "parallel"][tile]
        call = Call(q, k, v, g, cu_seqlens, longest, entry)
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


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    q, k, v, w, beta, g, do = contiguous(q, k, v, w, beta, g, d0)
    batch, tokens, heads, key_dim = q.shape
    dq, dk, dw = (torch.empty_like(x) for x in (q, k, w))
    dg = None if g is None else torch.empty_like(g)
    if dq.numel() == 0:
        return [dq, *(torch.zeros_like(x) for x in (k, v, w, beta)), dg, None]
    with torch.cuda.device_of(q):
        entry = tiles.TABLE["path_attn", "parallel"][tile]
        call = Call(q, k, v, g, cu_seqlens, longest, entry)
        groups, span, spans = call.groups, call.span, call.spans.count
        x = empty_pieces(q, 1 + RUN, *q.shape)
        within = call.within(k, w, beta, x, scale)
        dx = empty_pieces(q, RUN, *q.shape)
        new = within.scores.new_empty
        dscores, terms = torch.empty_like(within.scores), new(3, batch, heads, tokens)
        dinner_q = new(q.shape)
        dinner_k, of_v = (torch.zeros_like(y, dtype=torch.float32) for y in (k, v))
        dm = torch.zeros(spans, groups, key_dim, key_dim, dtype=torch.float32, device=q.device)
        gated = call.gated
        sums = new(RUN, batch, heads, tokens if gated else 0)
        rows, column_sums = dm.new_zeros(2, batch, heads, tokens if gated else 0)
        through = dm.new_zeros(spans, heads if gated else 0)
        kept = q.dtype if q.dtype == torch.bfloat16 else torch.float32
        weights, between = q.new_empty(2, RUN, *dscores.shape, dtype=kept)
        sizes = call.of_queries
        dims = key_dim, call.value_dim
        names = ("walk", "return", "by_key", "cross")
        out, back, keyed, cross = (call.tile(name) for name in names)
        walk, turn, gather, over = (call.walk(name) for name in names)
        del gather["GATED"]
        columns = dm.new_zeros(RUN * span // back.tokens, *column_sums.shape)
        for run in range(cdiv(longest, RUN * span)):
            queries = call.chunks.sequences * RUN * span * heads
            attend[(queries // out.tokens,)](
                x, within.k, within.m, v, do, within.scores, do, dscores, terms, *call.gates,
                cu_seqlens, run, *sizes, spans, 0, *dims, GRADIENT=True,
                BQ=out.tokens, BN=out.keys, C=call.block.tokens,
                SLICE=min(walk["BK"], 64), **walk,
            )  # fmt: skip
            walk_back[(queries // back.tokens,)](
                x, dx, within.k, within.m, v, do, terms, weights, between, dinner_q, rows, columns,
                sums, *call.gates, cu_seqlens, run, *sizes, spans, *dims,
                BQ=back.tokens, BN=back.keys, SLICE=min(turn["BK"], 64), **turn,
            )  # fmt: skip
            behind = call.chunks.sequences * ((run + 1) * RUN - 1) * groups
            if behind > 0:
                by_key[(behind * span // keyed.tokens,)](
                    x, weights, between, do, dinner_k, of_v, cu_seqlens, run, *sizes, *dims,
                    BN=keyed.tokens, BQ=keyed.keys, **gather,
                )  # fmt: skip
            if gated:
                column_sums += columns.sum(0)
                columns.zero_()
            passed = behind - call.chunks.sequences * groups
            if passed > 0:
                cross_backward[(passed * cdiv(key_dim, cross.tokens),)](
                    x, dx, dm, sums, through, cu_seqlens, run, *sizes, key_dim,
                    C=cross.tokens, **over,
                )  # fmt: skip
        own_values[(call.chunks.count * groups,)](
            do, within.scores, of_v, cu_seqlens, *sizes, call.value_dim, span, C=call.block.tokens,
            PAD_V=walk["PAD_V"], num_warps=8, num_stages=1,
            **call.constants,
        )  # fmt: skip
        if gated:
            gates_backward[(call.chunks.count * heads,)](
                dscores, rows, column_sums, through, dg, cu_seqlens, *sizes[:3], span,
                PACKED=cu_seqlens is not None, SPAN=span, C=call.block.tokens,
            )  # fmt: skip
        del x, dx, weights, between
        # With fewer, they keep registers in memory.
        more_warps = {**call.blocks, "num_warps": 8}
        k_more, w_more, dz = (torch.empty_like(dinner_k) for _ in range(3))
        e, de, dd = torch.empty_like(dscores), within.scores, torch.empty_like(within.d)
        by_row[(call.chunks.count * heads,)](
            q, k, w, within.z, within.d, dinner_q, dscores, e, de, dq, cu_seqlens, scale,
            *sizes, key_dim, span, **call.blocks,
        )  # fmt: skip
        by_column[(call.chunks.count * groups,)](
            q, w, within.z, dinner_q, dscores, e, de, dm, k_more, w_more, dz,
            cu_seqlens, scale, *sizes, key_dim, span,
            **more_warps,
        )  # fmt: skip
        by_pair[(call.chunks.count * groups,)](
            w, dscores, e, dinner_k, dd, cu_seqlens, scale, *sizes, key_dim, span, **call.blocks,
        )  # fmt: skip
        del e
        da, db = (torch.empty_like(dd) for _ in range(2))
        dbeta = torch.empty_like(beta, dtype=torch.float32)
        solve_backward[(spans * groups,)](
            k, w, beta, within.inverse, dz, dd, da, db, dbeta, cu_seqlens, *call.of_keys, key_dim,
            span, **call.blocks,
        )  # fmt: skip
        add_system[(call.chunks.count * groups,)](
            k, w, beta, within.inverse, within.d, dz, dinner_k, da, db, k_more, w_more, dk, dw,
            cu_seqlens, *call.of_keys, key_dim, span, **more_warps,
        )  # fmt: skip
    return [dq, dk, of_v.to(v.dtype), dw, dbeta.to(beta.dtype), dg, None]


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
