"""Softmax attention: the public op, and the custom ops behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import FLOATS, count_sequences
from kernels.differentiable import refuse_gradients
from kernels.modes import check_mode
from kernels.op import op
from kernels.primitives.layout import contiguous, dense_rows
from kernels.scale import resolve_scale
from kernels.softmax import wide as wide_heads
from kernels.softmax.arguments import (
    MAX_DIM,
    MAX_KEY_DIM,
    MAX_VALUE_DIM,
    LseOptions,
    check_groups,
    check_packing,
    check_softcap,
    check_window,
)
from kernels.softmax.backward import (
    attention_backward_bias,
    attention_backward_kv,
    attention_backward_q,
    attention_terms,
)
from kernels.softmax.forward import attention_forward
from kernels.softmax.gates import add_levels, cumulative_gates, levels, within_blocks
from kernels.softmax.launch import factor_and_cap, launch
from kernels.softmax.logits import LOG2E
from kernels.softmax.ranges import powers
from kernels.softmax.structure import Structure, attention_rules, check_pairs, check_structure
from kernels.tiles import cdiv, next_power_of_2

# Tiles in which no pair is visible are not computed. That changes no bit.
SKIP = True
# Biases and masks of pairs take registers, and smaller tiles are skipped more often.
_PAIRED = tiles.Tile(tokens=32, keys=32, num_warps=8, num_stages=1)
_PAIRED_AND_WIDE = tiles.Tile(tokens=32, keys=16, num_warps=8, num_stages=1)
# Float32 takes twice as many.
_PAIRED_IN_FLOAT32 = tiles.Tile(tokens=16, keys=16, num_warps=8, num_stages=1)


def compute(
    *, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, softcap: float | None,
    sink: Tensor | None, alibi_slopes: Tensor | None, g: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, structure: Structure | None, scale: float | None,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, return_lse: bool, mode: str,
    tile: int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    sizes = arguments.bind_dims(
        q=(q, "B T_q H K"),
        k=(k, "B T_k G K"),
        v=(v, "B T_k G V"),
        sink=(sink, "H"),
        alibi_slopes=(alibi_slopes, "H"),
        g=(g, "B T_k H"),
    )
    dtype = arguments.check_one_dtype(q=q, k=k, v=v)
    for name, x in (("sink", sink), ("alibi_slopes", alibi_slopes), ("g", g)):
        arguments.check_dtype(name, x, dtype, torch.float32)
    check_pairs("bias", bias, sizes, q.device, *FLOATS)
    check_pairs("mask", mask, sizes, q.device, torch.bool)
    arguments.check_range("head dim K of q", sizes["K"], 1, MAX_KEY_DIM)
    arguments.check_range("head dim V of v", sizes["V"], 1, MAX_VALUE_DIM)
    check_groups(sizes)
    for name, x in (("g", g), ("bias", bias)):
        if x is not None and max(sizes["K"], sizes["V"]) > MAX_DIM:
            raise ValueError(
                f"{name}: given with head dims K={sizes['K']} and V={sizes['V']}, expected none "
                f"above {MAX_DIM}, where its gradient has no kernel"
            )
    arguments.check_flags(causal=causal, return_lse=return_lse)
    if g is not None and not causal:
        raise ValueError("g: given with causal=False, expected causal=True")
    check_mode(mode, "parallel")

    cu_seqlens, cu_seqlens_k = check_packing(cu_seqlens, cu_seqlens_k, sizes, q.device)

    sequences = count_sequences(sizes["B"], cu_seqlens)
    rules = check_structure(structure, sizes, sequences, q.device, packed=cu_seqlens is not None)
    codes, lows, highs = _codes(q, k, cu_seqlens, cu_seqlens_k, rules)
    (table,) = contiguous(rules.get("blocks"))
    o, lse, _ = attention_parallel(
        q, k, v, *contiguous(sink, alibi_slopes), g, cu_seqlens, cu_seqlens_k,
        bias, mask, table, codes, lows, highs, rules.get("block_size", 1),
        resolve_scale(scale, sizes["K"]), causal, check_window(window), check_softcap(softcap),
        tiles.choose(
            "attention", "parallel",
            dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
        ),
        False, dtype,
    )  # fmt: skip
    return o, lse if return_lse else None


@op(
    compute,
    outputs=("o", "lse"),
    about="Computed in tiles, without a matrix of weights in memory. Gradients flow to q, k, v, "
    "sink, g and bias, through o and through lse. Sums are float32. A gate below -2^17 is taken "
    "for -inf. Documents, prefixes and trees of `structure` are read before anything is launched.",
    same_dtype=("q", "k", "v"),
    texts={
        "bias": "float32, bfloat16 or float16. Any strides.",
        "mask": "bool. Any strides.",
        "cu_seqlens": "int32 or int64.",
        "cu_seqlens_k": "int32 or int64.",
        "lse": "float32; None unless `return_lse`.",
    },
    raises=[
        f"K outside 1 to {MAX_KEY_DIM} or V outside 1 to {MAX_VALUE_DIM}",
        f"`g` or a `bias` with one above {MAX_DIM}",
        "H not a multiple of G",
        "a scale that is NaN or infinite",
        "a window below 1",
        "a softcap that is not positive and finite",
        "`g` without `causal`",
        "`cu_seqlens_k` without `cu_seqlens`",
        "boundaries with B != 1, or that do not start at 0, decrease, or do not end at T_q (T_k)",
        "an entry of `structure` that is unknown or out of range",
    ],
)
def attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    alibi_slopes: Float[Tensor, "H"] | None = None,
    g: Float[Tensor, "B T_k H"] | None = None,
    bias: Float[Tensor, "#B #H #T_q #T_k"] | None = None,
    mask: Bool[Tensor, "#B #H #T_q #T_k"] | None = None,
    structure: Structure | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Softmax attention, `reference.attention`."""


def attention_within(
    dtype: torch.dtype,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    tile: int | None,
) -> tuple[Tensor, Tensor]:
    """o and lse of checked arguments, with products in `dtype`: o is float32 if the tensors are,
    and so are their gradients.
    """
    dim = max(q.shape[3], v.shape[3])
    o, lse, _ = attention_parallel(
        q, k, v, None, None, None, cu_seqlens, cu_seqlens_k, *[None] * 6, 1, scale, causal, window,
        None,
        tiles.choose("attention", "parallel", dim=dim, dtype=dtype, device=q.device, tile=tile),
        q.dtype != dtype, dtype,
    )  # fmt: skip
    return o, lse


def _codes(
    q: Tensor, k: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, rules: Structure
) -> tuple[Tensor | None, ...]:
    """Codes, lows and highs of the rules; None if there are no rules."""
    if not rules.keys() - {"blocks", "block_size"}:
        return None, None, None
    names = ("document_ids", "prefix", "parents", "chunk", "block_causal", "dilation")
    each = (rules.get(name) for name in names)
    codes: tuple[Tensor, ...] = attention_rules(q, k, cu_seqlens, cu_seqlens_k, *each)
    return codes


def _options(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int | None,
    softcap: float | None,
) -> tuple[tuple[float, float, int], tuple[int, int, int], dict[str, bool]]:  # fmt: skip
    """Return (factor, cap, window), (group, key dim, value dim) and constants of all kernels."""
    limit = q.shape[1] + k.shape[1]
    numbers = (
        *factor_and_cap(scale, softcap),
        # Distances are below the limit, and a wider window could overflow when it is added to one.
        limit if window is None else min(window, limit),
    )
    constants = {"CAUSAL": causal, "WINDOW": window is not None, "CAPPED": softcap is not None}
    return numbers, (q.shape[2] // k.shape[2], k.shape[3], v.shape[3]), constants


def _tile(entry: tiles.Entry, kernel: str, *pairs: Tensor | None) -> tiles.Tile:
    """The tile of a kernel, or the one of all kernels that load something of each pair."""
    if all(x is None for x in pairs):
        return entry.of(kernel)
    if torch.float32 in entry.dtypes:
        return _PAIRED_IN_FLOAT32
    return _PAIRED if entry.max_dim <= 128 else _PAIRED_AND_WIDE


Pairs = tuple[Tensor | None, ...]


def _pairs(pairs: Pairs, block: int) -> tuple[Pairs, tuple[int, ...], dict[str, bool | int]]:
    """Return the tensors of pairs, their strides and the flags as kernels take them."""
    bias, mask, table, codes, lows, highs = pairs
    steps = (
        *_steps(bias), *_steps(mask),
        *(_steps(table)[:2] if table is not None else (0, 0)), block,
        0 if codes is None else codes.stride(0), 0 if lows is None else lows.stride(0),
    )  # fmt: skip
    constants = {
        "BIASED": bias is not None,
        "MASKED": mask is not None,
        "TABLED": table is not None,
        "RULES": 0 if codes is None else len(codes),
        "SKIP": SKIP,
    }
    return (bias, _bytes(mask), _bytes(table), codes, lows, highs), steps, constants


def _steps(x: Tensor | None) -> tuple[int, ...]:
    """Strides, 0 along a size of 1, which stands for all."""
    if x is None:
        return (0, 0, 0, 0)
    return tuple(0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True))


def _bytes(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.view(torch.uint8)


@torch.library.custom_op("attention_oracles::attention_parallel", mutates_args=())
def attention_parallel(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, alibi_slopes: Tensor | None,
    g: Tensor | None, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, table: Tensor | None, codes: Tensor | None, lows: Tensor | None,
    highs: Tensor | None, block: int, scale: float, causal: bool, window: int | None,
    softcap: float | None, tile: int, wide: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o and lse of `attention`, its arguments resolved and checked but for the boundaries.

    The third result is for the backward pass, [2, B, H, T]: the maximum m of a row's base-2 logits
    s, and Σ_j 2^(s_j - m). If `wide`, o is float32, for ops that compute with it. q, k and v are
    rounded to `dtype` before they are multiplied; an op that computes with their gradients passes
    them in float32, and gets float32 gradients.
    """
    q, k, v = (x.to(dtype) for x in (q, k, v))
    batch, queries, heads, _ = q.shape
    keys, value_dim = k.shape[1], v.shape[3]
    longest = arguments.check_boundaries("cu_seqlens", cu_seqlens, queries)
    arguments.check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    sequences = count_sequences(batch, cu_seqlens)
    o = q.new_empty(batch, queries, heads, value_dim, dtype=torch.float32 if wide else q.dtype)
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    softmax = lse.new_empty(2, *lse.shape)
    if lse.numel() == 0:
        return o, lse, softmax

    shape = _tile(tiles.TABLE["attention", "parallel"][tile], "", bias, mask, table, codes)
    numbers, dims, constants = _options(q, k, v, scale, causal, window, softcap)
    pairs, steps, of_pairs = _pairs((bias, mask, table, codes, lows, highs), block)
    constants |= of_pairs
    count = cdiv(longest, shape.tokens)
    q, k, v = dense_rows(q, k, v)
    if max(q.shape[3], value_dim) > MAX_DIM:
        parts, shaped = wide_heads.shape(tiles.TABLE["attention", "parallel"][tile], value_dim)
        count = cdiv(longest, shaped["QUERIES"])
        with torch.cuda.device_of(q):
            wide_heads.wide_forward[(count * parts * sequences * heads,)](
                q, k, v, o, lse, *softmax, sink, alibi_slopes, cu_seqlens, cu_seqlens_k,
                *numbers, queries, keys, count, parts, heads, *dims,
                *wide_heads.strides(q, k, v), pairs, steps,
                SINK=sink is not None, ALIBI=alibi_slopes is not None,
                PACKED=cu_seqlens is not None, **constants, **shaped,
            )  # fmt: skip
        return o, lse, softmax
    with torch.cuda.device_of(q):
        gates = (None, None, None) if g is None else cumulative_gates(g, cu_seqlens_k)
        attention_forward[(count * sequences * heads,)](
            q, k, v, o, lse, *softmax, sink, alibi_slopes, *gates, cu_seqlens, cu_seqlens_k,
            *numbers, queries, keys, count, heads, *dims,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], pairs, steps,
            SINK=sink is not None, ALIBI=alibi_slopes is not None, GATED=g is not None,
            PACKED=cu_seqlens is not None, **constants,
            **launch(shape, k, v, held="QUERIES", read="KEYS"),
        )  # fmt: skip
    return o, lse, softmax


@attention_parallel.register_fake
def _(q, k, v, *more):
    batch, queries, heads, _ = q.shape
    *_, wide, dtype = more
    o = q.new_empty(batch, queries, heads, v.shape[3], dtype=torch.float32 if wide else dtype)
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    return o, lse, lse.new_empty(2, *lse.shape)


@torch.library.custom_op("attention_oracles::attention_parallel_backward", mutates_args=())
def attention_parallel_backward(
    do: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None,
    alibi_slopes: Tensor | None, g: Tensor | None, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, bias: Tensor | None, mask: Tensor | None, table: Tensor | None,
    codes: Tensor | None, lows: Tensor | None, highs: Tensor | None, o: Tensor, softmax: Tensor,
    block: int, scale: float, causal: bool, window: int | None, softcap: float | None, tile: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, sink, g and bias; the last three are empty if there is none.

    dv is in the dtype of o. The cotangent `do` is in `dtype` or float32.
    """
    batch, queries, heads, key_dim = q.shape
    keys, kv_heads, value_dim = v.shape[1:]
    longest_q = arguments.check_boundaries("cu_seqlens", cu_seqlens, queries)
    longest_k = arguments.check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    sequences = count_sequences(batch, cu_seqlens)
    dq = q.new_empty(batch, queries, heads, key_dim)
    dk = k.new_empty(batch, keys, kv_heads, key_dim)
    dv = o.new_empty(batch, keys, kv_heads, value_dim)
    terms = softmax.new_empty(batch, heads, queries, 4)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    given, scaled = do, powers(do, dlse, v, cu_seqlens, cu_seqlens_k)
    if scaled is not None:
        do, dlse = scaled.divided(do, dlse)
    do = do.to(dtype)

    entry = tiles.TABLE["attention", "parallel"][tile]
    special = "gated" if g is not None else ""
    if g is None and (softcap is not None or alibi_slopes is not None):
        special = "biased" if "biased" in entry.kernels else ""

    def tile_of(kernel: str) -> tiles.Tile:
        if window is not None and f"windowed_{kernel}" in entry.kernels:
            kernel = f"windowed_{kernel}"
        return _tile(entry, special or kernel, bias, mask, table, codes)

    numbers, dims, constants = _options(q, k, v, scale, causal, window, softcap)
    *pairs, of_pairs = _pairs((bias, mask, table, codes, lows, highs), block)
    constants |= {"ALIBI": alibi_slopes is not None, "GATED": g is not None}
    constants |= {"PACKED": cu_seqlens is not None, **of_pairs}
    q, k, v, do = dense_rows(q, k, v, do)
    dlse = dlse.contiguous()
    dg, dbias = softmax.new_empty(0), softmax.new_empty(0)
    with torch.cuda.device_of(q):
        gates = (None, None, None) if g is None else cumulative_gates(g, cu_seqlens_k)
        call = _Backward(
            q, k, v, do, terms, alibi_slopes, gates, (cu_seqlens, cu_seqlens_k),
            (*numbers, queries, keys), dims, pairs, constants,
            sequences, longest_q, longest_k,
        )  # fmt: skip
        if max(key_dim, value_dim) > MAX_DIM:
            _wide_backward(call, dlse, o, softmax, dq, dk, dv, entry, scale)
        else:
            row_sums, column_sums = _narrow_backward(
                call, dlse, o, softmax, dq, dk, dv, entry, scale, tile_of
            )
            if g is not None:
                dg = _gate_gradient(call, tile_of("dq"), row_sums, column_sums)
                if scaled is not None:
                    dg = dg * scaled.of_keys[..., None]
                dg = dg.to(g.dtype, memory_format=torch.contiguous_format)
        if scaled is not None:
            scaled.restore(dq, dk, dv)
            # Gradients of a sink and of a bias are not stored before they are summed.
            terms[..., 2:].mul_(scaled.of_queries[:, None, :, None])
        if bias is not None:
            (do,) = dense_rows(given.to(dtype))
            dbias = _bias_gradient(replace(call, do=do), bias, tile_of("dq"))
    return dq, dk, dv, sink_gradient(sink, softmax, terms[..., 2]), dg, dbias


@dataclass(frozen=True)
class _Backward:
    """The arguments that all backward kernels of one call share.

    Args:
        slopes, gates, boundaries: of ALiBi, cumulative, of queries and keys.
        numbers: factor, cap and window, and how many queries and keys there are in a row.
        dims: heads of a group, K and V.
        pairs: the tensors of pairs and their steps, see `_pairs`.
        constants: flags of a compiled kernel.
        longest_q, longest_k: of the sequences.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    terms: Tensor
    slopes: Tensor | None
    gates: Sequence[Tensor | None]
    boundaries: tuple[Tensor | None, Tensor | None]
    numbers: tuple[float | int, ...]
    dims: tuple[int, int, int]
    pairs: Sequence[Any]
    constants: dict[str, Any]
    sequences: int
    longest_q: int
    longest_k: int

    @property
    def read(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.do, self.terms

    @property
    def given(self) -> tuple[Tensor | None, ...]:
        return self.slopes, *self.gates, *self.boundaries

    @property
    def strides(self) -> tuple[Any, ...]:
        each = (step for x in (self.q, self.k, self.v) for step in x.stride()[:3])
        return *each, *self.do.stride()[:3], *self.pairs

    def launch_terms(
        self, o: Tensor, dlse: Tensor, softmax: Tensor, tokens: int, count: int
    ) -> None:
        """Fill `terms`: `count` programs of `tokens` tokens for each sequence and head."""
        (_, queries, heads, _), (_, _, value_dim) = self.q.shape, self.dims
        attention_terms[(count * self.sequences * heads,)](
            o, self.do, dlse, *softmax, self.terms, self.boundaries[0], queries, count, heads,
            value_dim, *self.do.stride()[:3], PACKED=self.constants["PACKED"], QUERIES=tokens,
            PAD_V=next_power_of_2(value_dim),
        )  # fmt: skip


def _narrow_backward(
    call: _Backward, dlse: Tensor, o: Tensor, softmax: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    entry: tiles.Entry, scale: float, tile_of: Callable[[str], tiles.Tile],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Fill terms, dq, dk and dv of heads up to 256.

    Returns:
        The sums of dS by query and by key, for `_gate_gradient`; None without gates.
    """
    (batch, queries, heads, _), (_, keys, kv_heads, _) = call.q.shape, call.k.shape
    terms = call.terms
    gated = call.constants["GATED"]
    tile = tile_of("dq")
    # Tiles of gates start at multiples of their length among the keys: perhaps one more.
    count = cdiv(call.longest_q, tile.tokens) + gated
    row_sums = column_sums = None
    if gated:
        depth = levels(call.longest_k, tile.tokens)
        row_sums = terms.new_zeros(depth, batch, heads, queries)
        column_sums = terms.new_zeros(depth, batch, heads, keys)
    if terms.numel():
        call.launch_terms(o, dlse, softmax, tile.tokens, count)
        attention_backward_q[(count * call.sequences * heads,)](
            *call.read, dq, row_sums, *call.given, scale, *call.numbers, count, heads,
            batch * heads * queries, *call.dims, *call.strides, SPAN=tile.tokens,
            **call.constants, **launch(tile, call.k, call.v, held="QUERIES", read="KEYS"),
        )  # fmt: skip
    # Apart, dk and dv take half the registers each, and one product more.
    apart = gated or "dk" in entry.kernels
    launches = [("dk", True, False), ("dv", False, True)] if apart else [("dkv", True, True)]
    for name, of_k, of_v in launches if dk.numel() else ():
        tile = tile_of(name)
        count = cdiv(call.longest_k, tile.tokens)
        attention_backward_kv[(count * call.sequences * kv_heads,)](
            *call.read, dk, dv, column_sums, *call.given, scale, *call.numbers, count, kv_heads,
            batch * heads * keys, *call.dims, *call.strides, SPAN=tile.tokens, DK=of_k, DV=of_v,
            **call.constants, **launch(tile, call.k, call.v, held="KEYS", read="QUERIES"),
        )  # fmt: skip
    return row_sums, column_sums


def _gate_gradient(
    call: _Backward, tile: tiles.Tile, row_sums: Tensor, column_sums: Tensor
) -> Tensor:
    """dg [B, T, H] in float32."""
    (depth, *_), heads = row_sums.shape, call.q.shape[2]
    parts = column_sums.new_empty(1 + depth, *column_sums.shape[1:])
    count = cdiv(call.longest_k, tile.tokens)
    if parts.numel():
        within_blocks[(count * call.sequences * heads,)](
            *call.read, parts, *call.given, *call.numbers, count, heads, *call.dims,
            *call.strides, **call.constants,
            **launch(tile, call.k, call.v, held="SPAN", read="QUERIES"),
        )  # fmt: skip
    return add_levels(parts, row_sums, column_sums, tile.tokens, *call.boundaries)


def _bias_gradient(call: _Backward, bias: Tensor, tile: tiles.Tile) -> Tensor:
    heads = call.q.shape[2]
    dbias = torch.zeros_like(bias, memory_format=torch.contiguous_format)
    shape = launch(tile, call.k, call.v, held="QUERIES", read="KEYS")
    tiled = cdiv(call.longest_q, shape["QUERIES"]), cdiv(call.longest_k, shape["KEYS"])
    alone_b, alone_h, alone_q, alone_k = (n == 1 for n in bias.shape)
    # Packed sequences have parts of their own in a matrix of all tokens.
    alone_n = alone_q and alone_k if call.constants["PACKED"] else alone_b
    programs = 1
    for alone, count in (
        (alone_n, call.sequences), (alone_h, heads), (alone_q, tiled[0]), (alone_k, tiled[1]),
    ):  # fmt: skip
        programs *= 1 if alone else count
    if dbias.numel() and programs:
        attention_backward_bias[(programs,)](
            *call.read, dbias, *call.given, *call.numbers, *tiled, heads, call.sequences,
            *call.dims, *call.strides,
            SUM_N=alone_n, SUM_H=alone_h, SUM_Q=alone_q, SUM_K=alone_k,
            **call.constants, **shape,
        )  # fmt: skip
    return dbias


def _wide_backward(
    call: _Backward, dlse: Tensor, o: Tensor, softmax: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    entry: tiles.Entry, scale: float,
) -> None:  # fmt: skip
    """Fill terms, dq, dk and dv of heads above 256."""
    heads, kv_heads = call.q.shape[2], call.k.shape[2]
    constants = {name: x for name, x in call.constants.items() if name != "GATED"}
    given = (call.slopes, *call.boundaries, scale, *call.numbers)
    if call.terms.numel():
        parts, shaped = wide_heads.shape(entry, call.dims[1])
        count = cdiv(call.longest_q, shaped["QUERIES"])
        call.launch_terms(o, dlse, softmax, shaped["QUERIES"], count)
        wide_heads.wide_backward_q[(count * parts * call.sequences * heads,)](
            *call.read, dq, *given, count, parts, heads, *call.dims, *call.strides,
            **constants, **shaped,
        )  # fmt: skip
    for out, of_v in ((dk, False), (dv, True)):
        if out.numel():
            parts, shaped = wide_heads.shape(entry, out.shape[3])
            count = cdiv(call.longest_k, shaped["KEYS"])
            wide_heads.wide_backward_kv[(count * parts * call.sequences * kv_heads,)](
                *call.read, out, *given, count, parts, kv_heads, *call.dims, *call.strides,
                DV=of_v, **constants, **shaped,
            )  # fmt: skip


def sink_gradient(sink: Tensor | None, softmax: Tensor, delta: Tensor) -> Tensor:
    """Σ over rows of P·(0 - delta): the gradient of a logit that has no value."""
    if sink is None:
        return softmax.new_empty(0)
    row_max, weight_sum = softmax
    weight = torch.exp2(sink.float()[None, :, None] * LOG2E.value - row_max) / weight_sum
    # The sum is 0 only where the sink is -inf and no key is seen, and then the sink weighs nothing.
    rows = torch.where(weight_sum == 0, 0.0, weight * -delta)
    return rows.sum((0, 2), dtype=torch.float64).to(sink.dtype)


@attention_parallel_backward.register_fake
def _(
    do, dlse, q, k, v, sink, alibi_slopes, g, cu_seqlens, cu_seqlens_k,
    bias, mask, table, codes, lows, highs, o, softmax, *more,
):  # fmt: skip
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        o.new_empty(v.shape),
        softmax.new_empty(0) if sink is None else sink.new_empty(sink.shape),
        softmax.new_empty(0) if g is None else g.new_empty(g.shape),
        softmax.new_empty(0) if bias is None else bias.new_empty(bias.shape),
    )


def _save(ctx, inputs, output) -> None:
    o, _, softmax = output
    ctx.mark_non_differentiable(softmax)
    ctx.save_for_backward(*inputs[:14], o, softmax)
    # `wide` shows in the dtype of o.
    *ctx.options, _, ctx.dtype = inputs[14:]


def _differentiate(ctx, do, dlse, _):
    # A checkpoint gives them once.
    saved = ctx.saved_tensors
    sink, g, bias = (saved[at] for at in (3, 5, 8))
    dq, dk, dv, dsink, dg, dbias = attention_parallel_backward(
        do, dlse, *saved, *ctx.options, ctx.dtype
    )
    return (
        dq, dk, dv, None if sink is None else dsink, None, None if g is None else dg,
        None, None, None if bias is None else dbias, *(None for _ in range(7 + len(ctx.options))),
    )  # fmt: skip


attention_parallel.register_autograd(_differentiate, setup_context=_save)
refuse_gradients(attention_parallel_backward, "attention")
