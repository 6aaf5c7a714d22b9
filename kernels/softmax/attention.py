"""Softmax attention: the public op, and the launches behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import count_sequences
from kernels.differentiable import differentiable, schema_of
from kernels.modes import check_mode
from kernels.op import op
from kernels.primitives.layout import contiguous, dense_rows, outer_strides
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.softmax import wide as wide_heads
from kernels.softmax.arguments import (
    BAD_BOUNDARIES,
    BAD_SOFTCAP,
    MAX_DIM,
    MAX_KEY_DIM,
    MAX_VALUE_DIM,
    LseOptions,
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
from kernels.softmax.launch import factor_and_cap, launch, result_shapes
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
    check_pairs("bias", bias, sizes, q.device, *dict.fromkeys((dtype, torch.float32)))
    check_pairs("mask", mask, sizes, q.device, torch.bool)
    arguments.check_range("head dim K of q", sizes["K"], 1, MAX_KEY_DIM)
    arguments.check_range("head dim V of v", sizes["V"], 1, MAX_VALUE_DIM)
    arguments.check_groups(sizes)
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
    sink, alibi_slopes, table = contiguous(sink, alibi_slopes, rules.get("blocks"))
    call = Call(
        q=q, k=k, v=v, sink=sink, alibi_slopes=alibi_slopes, g=g, cu_seqlens=cu_seqlens,
        cu_seqlens_k=cu_seqlens_k, bias=bias, mask=mask, table=table, codes=codes, lows=lows,
        highs=highs, block=rules.get("block_size", 1), scale=resolve_scale(scale, sizes["K"]),
        causal=causal, window=check_window(window), softcap=check_softcap(softcap),
        tile=tiles.choose(
            "attention", "parallel",
            dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
        ),
        dtype=dtype,
    )  # fmt: skip
    o, lse = call.attend()
    return o, lse if return_lse else None


@op(
    compute,
    outputs=("o", "lse"),
    about="Computed in tiles, without a matrix of weights in memory. Gradients flow to q, k, v, "
    "sink, g and bias, through o and through lse. Sums are float32. A gate below -2^17 is taken "
    "for -inf. Documents, prefixes and trees of `structure` are read before anything is launched.",
    same_dtype=("q", "k", "v"),
    texts={
        "mask": "bool.",
        "lse": "float32; None unless `return_lse`.",
    },
    raises=[
        f"K outside 1 to {MAX_KEY_DIM} or V outside 1 to {MAX_VALUE_DIM}",
        f"`g` or a `bias` with one above {MAX_DIM}",
        "H not G, 2 G, 3 G, ...",
        BAD_SCALE,
        "a window below 1",
        BAD_SOFTCAP,
        "`g` without `causal`",
        *BAD_BOUNDARIES,
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
    tile = tiles.choose("attention", "parallel", dim=dim, dtype=dtype, device=q.device, tile=tile)
    return Call(
        q=q, k=k, v=v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k,
        scale=scale, causal=causal, window=window, tile=tile, dtype=dtype,
    ).attend()  # fmt: skip


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


def _steps(x: Tensor | None) -> tuple[int, ...]:
    """Strides, 0 along a size of 1, which stands for all."""
    if x is None:
        return (0, 0, 0, 0)
    return tuple(0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True))


def _bytes(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.view(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of `attention`, resolved and checked but for the numbers in boundaries.

    Args:
        q, k, v: rounded to `dtype` before they are multiplied. o and the gradients are in the dtype
            in which they are given: float32, for an op that computes with those.
        table, block: the pairs of blocks that are seen, and the tokens of a block.
        codes, lows, highs: see `attention_rules`.
        scale: a literal factor.
        tile: index into the tile table.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None = None
    g: Tensor | None = None
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None
    cu_seqlens: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    mask: Tensor | None = None
    table: Tensor | None = None
    codes: Tensor | None = None
    lows: Tensor | None = None
    highs: Tensor | None = None
    block: int = 1
    scale: float
    causal: bool
    window: int | None
    softcap: float | None = None
    tile: int
    dtype: torch.dtype

    def attend(self) -> tuple[Tensor, Tensor]:
        """o and lse, with gradients of q, k, v, sink, g and bias."""
        # PyTorch 2.11 compiles no `vars` of a frozen dataclass.
        o, lse, _ = _attention(**{name: getattr(self, name) for name in _NAMES})
        return o, lse

    @property
    def entry(self) -> tiles.Entry:
        """The row of the tile table."""
        return tiles.TABLE["attention", "parallel"][self.tile]

    def tile_of(self, kernel: str) -> tiles.Tile:
        """The tile of a kernel, or the one of all kernels that load something of each pair."""
        if all(x is None for x in (self.bias, self.mask, self.table, self.codes)):
            return self.entry.of(kernel)
        if torch.float32 in self.entry.dtypes:
            return _PAIRED_IN_FLOAT32
        return _PAIRED if self.entry.max_dim <= 128 else _PAIRED_AND_WIDE

    def backward_tile_of(self, kernel: str) -> tiles.Tile:
        """The tile of a backward kernel, which logits with gates, biases or windows may change."""
        special = "gated" if self.g is not None else ""
        if self.g is None and (self.softcap is not None or self.alibi_slopes is not None):
            special = "biased" if "biased" in self.entry.kernels else ""
        if self.window is not None and f"windowed_{kernel}" in self.entry.kernels:
            kernel = f"windowed_{kernel}"
        return self.tile_of(special or kernel)

    @property
    def sequences(self) -> int:
        return count_sequences(self.q.shape[0], self.cu_seqlens)

    @property
    def wide(self) -> bool:
        """Whether the kernels of wide heads compute it."""
        return max(self.q.shape[3], self.v.shape[3]) > MAX_DIM

    @property
    def numbers(self) -> tuple[float | int, ...]:
        """Factor, cap and window, and how many queries and keys there are in a row."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        # Distances are below the limit, and a wider window could overflow when it is added to one.
        limit = queries + keys
        window = limit if self.window is None else min(self.window, limit)
        return *factor_and_cap(self.scale, self.softcap), window, queries, keys

    @property
    def dims(self) -> tuple[int, int, int]:
        """Heads of a group, K and V."""
        return self.q.shape[2] // self.k.shape[2], self.k.shape[3], self.v.shape[3]

    @property
    def pairs(self) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
        """The tensors of pairs, and their strides."""
        table, codes, lows = self.table, self.codes, self.lows
        tensors = (self.bias, _bytes(self.mask), _bytes(table), codes, lows, self.highs)
        steps = (
            *_steps(self.bias), *_steps(self.mask),
            *(_steps(table)[:2] if table is not None else (0, 0)), self.block,
            0 if codes is None else codes.stride(0), 0 if lows is None else lows.stride(0),
        )  # fmt: skip
        return tensors, steps

    @property
    def constants(self) -> dict[str, bool | int]:
        """The flags of all kernels; those of narrow heads also have GATED."""
        return {
            "CAUSAL": self.causal,
            "WINDOW": self.window is not None,
            "CAPPED": self.softcap is not None,
            "ALIBI": self.alibi_slopes is not None,
            "PACKED": self.cu_seqlens is not None,
            "BIASED": self.bias is not None,
            "MASKED": self.mask is not None,
            "TABLED": self.table is not None,
            "RULES": 0 if self.codes is None else len(self.codes),
            "SKIP": SKIP,
        }

    def forward(self, out_dtype: torch.dtype) -> list[Tensor]:
        """o in `out_dtype`, lse, and for the backward pass [2, B, H, T]: the maximum m of a row's
        base-2 logits s, and Σ_j 2^(s_j - m).
        """
        batch, queries, heads, _ = self.q.shape
        keys, value_dim = self.k.shape[1], self.v.shape[3]
        longest = arguments.check_boundaries("cu_seqlens", self.cu_seqlens, queries)
        arguments.check_boundaries("cu_seqlens_k", self.cu_seqlens_k, keys)
        o = self.q.new_empty(batch, queries, heads, value_dim, dtype=out_dtype)
        lse = self.q.new_empty(batch, heads, queries, dtype=torch.float32)
        softmax = lse.new_empty(2, *lse.shape)
        if lse.numel() == 0:
            return [o, lse, softmax]
        q, k, v = dense_rows(*(x.to(self.dtype) for x in (self.q, self.k, self.v)))
        boundaries = self.cu_seqlens, self.cu_seqlens_k
        constants = {"SINK": self.sink is not None, **self.constants}
        if self.wide:
            parts, shape = wide_heads.shape(self.entry, value_dim)
            count = cdiv(longest, shape["QUERIES"])
            wide_heads.wide_forward[(count * parts * self.sequences * heads,)](
                q, k, v, o, lse, *softmax, self.sink, self.alibi_slopes, *boundaries,
                *self.numbers, count, parts, heads, *self.dims,
                *outer_strides(q, k, v), *self.pairs, **constants, **shape,
            )  # fmt: skip
            return [o, lse, softmax]
        gates = (None, None, None)
        if self.g is not None:
            gates = cumulative_gates(self.g, self.cu_seqlens_k)
        tile = self.tile_of("")
        count = cdiv(longest, tile.tokens)
        attention_forward[(count * self.sequences * heads,)](
            q, k, v, o, lse, *softmax, self.sink, self.alibi_slopes, *gates, *boundaries,
            *self.numbers, count, heads, *self.dims,
            *outer_strides(q, k, v), *self.pairs,
            GATED=self.g is not None, **constants,
            **launch(tile, k, v, held="QUERIES", read="KEYS"),
        )  # fmt: skip
        return [o, lse, softmax]

    def backward(
        self, do: Tensor, dlse: Tensor, o: Tensor, softmax: Tensor, factors: Tensor | None = None
    ) -> list[Tensor | None]:
        """Gradients of q, k, v, sink, g and bias; None for each that is not given.

        dv is in the dtype of o. The cotangent `do` is in `dtype` or float32. `factors [H]` multiply
        the gradients of q, k, v, g and bias in float32, head by head, before heads are summed.
        """
        boundaries = self.cu_seqlens, self.cu_seqlens_k
        batch, queries, heads, _ = self.q.shape
        keys, kv_heads, value_dim = self.v.shape[1:]
        longest_q = arguments.check_boundaries("cu_seqlens", self.cu_seqlens, queries)
        longest_k = arguments.check_boundaries("cu_seqlens_k", self.cu_seqlens_k, keys)
        dq, dk = (x.new_empty(x.shape) for x in (self.q, self.k))
        dv = o.new_empty(batch, keys, kv_heads, value_dim)
        terms = softmax.new_empty(batch, heads, queries, 4)
        q, k, v = (x.to(self.dtype) for x in (self.q, self.k, self.v))
        given, scaled = do, powers(do, dlse, v, *boundaries, factors)
        if scaled is not None:
            do, dlse = scaled.divided(do, dlse)
        q, k, v, do = dense_rows(q, k, v, do.to(self.dtype))
        dg = dbias = None
        gates = (None, None, None)
        if self.g is not None:
            gates = cumulative_gates(self.g, self.cu_seqlens_k)
        launches = _Backward(
            call=self, q=q, k=k, v=v, do=do, dlse=dlse.contiguous(), o=o, softmax=softmax,
            factors=factors, terms=terms, gates=gates, longest_q=longest_q, longest_k=longest_k,
        )  # fmt: skip
        if self.wide:
            launches.wide(dq, dk, dv)
        else:
            row_sums, column_sums = launches.narrow(dq, dk, dv)
            if self.g is not None:
                dg = launches.gate_gradient(row_sums, column_sums)
                if scaled is not None:
                    dg = dg * scaled.of_keys[..., None]
                dg = dg.to(self.g.dtype, memory_format=torch.contiguous_format)
        if scaled is not None:
            scaled.restore(dq, dk, dv)
            # Gradients of a sink and of a bias are not stored before they are summed.
            terms[..., 2:].mul_(scaled.of_queries[:, None, :, None])
        if self.bias is not None:
            (do,) = dense_rows(given.to(self.dtype))
            dbias = replace(launches, do=do).bias_gradient(self.bias)
        dsink = None if self.sink is None else sink_gradient(self.sink, softmax, terms[..., 2])
        return [dq, dk, dv, dsink, dg, dbias]


@dataclass(frozen=True, kw_only=True)
class _Backward:
    """The launches of one backward pass, and what they read.

    Args:
        q, k, v, do: in the dtype of products.
        softmax: see `Call.forward`.
        factors: see `Call.backward`.
        terms: [B, H, T, 4], see `attention_terms`, which the first launch fills.
        gates: see `cumulative_gates`.
        longest_q, longest_k: of the sequences.
    """

    call: Call
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    dlse: Tensor
    o: Tensor
    softmax: Tensor
    factors: Tensor | None
    terms: Tensor
    gates: Sequence[Tensor | None]
    longest_q: int
    longest_k: int

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The first arguments of every kernel but `attention_terms`."""
        return self.q, self.k, self.v, self.do, self.terms

    @property
    def given(self) -> tuple[Tensor | None, ...]:
        """Slopes, gates and boundaries, in the order of the kernels of narrow heads."""
        call = self.call
        return call.alibi_slopes, *self.gates, call.cu_seqlens, call.cu_seqlens_k

    @property
    def strides(self) -> tuple[Any, ...]:
        """The strides of q, k, v and do; the tensors of pairs, and theirs."""
        return *outer_strides(self.q, self.k, self.v, self.do), *self.call.pairs

    @property
    def constants(self) -> dict[str, bool | int]:
        """The flags of the kernels of narrow heads."""
        return {"GATED": self.call.g is not None, **self.call.constants}

    def fill_terms(self, tokens: int, count: int) -> None:
        """Launch `count` programs of `tokens` tokens for each sequence and head."""
        queries, heads, value_dim = *self.q.shape[1:3], self.v.shape[3]
        attention_terms[(count * self.call.sequences * heads,)](
            self.o, self.do, self.dlse, *self.softmax, self.factors, self.terms,
            self.call.cu_seqlens, queries, count, heads, value_dim, *outer_strides(self.do),
            PACKED=self.call.cu_seqlens is not None, SCALED=self.factors is not None,
            QUERIES=tokens, PAD_V=next_power_of_2(value_dim),
        )  # fmt: skip

    def narrow(self, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Fill terms, dq, dk and dv of heads up to 256.

        Returns:
            The sums of dS by query and by key, for `gate_gradient`; None without gates.
        """
        call, terms, constants = self.call, self.terms, self.constants
        (batch, queries, heads, _), (_, keys, kv_heads, _) = self.q.shape, self.k.shape
        gated = call.g is not None
        tile = call.backward_tile_of("dq")
        # Tiles of gates start at multiples of their length among the keys: perhaps one more.
        count = cdiv(self.longest_q, tile.tokens) + gated
        row_sums = column_sums = None
        if gated:
            depth = levels(self.longest_k, tile.tokens)
            row_sums = terms.new_zeros(depth, batch, heads, queries)
            column_sums = terms.new_zeros(depth, batch, heads, keys)
        if terms.numel():
            self.fill_terms(tile.tokens, count)
            attention_backward_q[(count * call.sequences * heads,)](
                *self.read, dq, row_sums, *self.given, call.scale, *call.numbers, count, heads,
                batch * heads * queries, *call.dims, *self.strides, SPAN=tile.tokens,
                **constants, **launch(tile, self.k, self.v, held="QUERIES", read="KEYS"),
            )  # fmt: skip
        # In two kernels, dk and dv take half the registers each, and one product more.
        split = gated or "dk" in call.entry.kernels
        launches = [("dk", True, False), ("dv", False, True)] if split else [("dkv", True, True)]
        for name, of_k, of_v in launches if dk.numel() else ():
            tile = call.backward_tile_of(name)
            count = cdiv(self.longest_k, tile.tokens)
            attention_backward_kv[(count * call.sequences * kv_heads,)](
                *self.read, dk, dv, column_sums, *self.given, call.scale, *call.numbers, count,
                kv_heads, batch * heads * keys, *call.dims, *self.strides, SPAN=tile.tokens,
                DK=of_k, DV=of_v, **constants,
                **launch(tile, self.k, self.v, held="KEYS", read="QUERIES"),
            )  # fmt: skip
        return row_sums, column_sums

    def gate_gradient(self, row_sums: Tensor, column_sums: Tensor) -> Tensor:
        """dg [B, T, H] in float32."""
        call, tile = self.call, self.call.backward_tile_of("dq")
        (depth, *_), heads = row_sums.shape, self.q.shape[2]
        parts = column_sums.new_empty(1 + depth, *column_sums.shape[1:])
        count = cdiv(self.longest_k, tile.tokens)
        if parts.numel():
            within_blocks[(count * call.sequences * heads,)](
                *self.read, parts, *self.given, *call.numbers, count, heads, *call.dims,
                *self.strides, **self.constants,
                **launch(tile, self.k, self.v, held="SPAN", read="QUERIES"),
            )  # fmt: skip
        boundaries = call.cu_seqlens, call.cu_seqlens_k
        return add_levels(parts, row_sums, column_sums, tile.tokens, *boundaries)

    def bias_gradient(self, bias: Tensor) -> Tensor:
        """dbias in the shape and dtype of `bias`: dS, summed along its sizes of 1."""
        call, heads = self.call, self.q.shape[2]
        dbias = torch.zeros_like(bias, memory_format=torch.contiguous_format)
        tile = call.backward_tile_of("dq")
        shape = launch(tile, self.k, self.v, held="QUERIES", read="KEYS")
        tiled = cdiv(self.longest_q, shape["QUERIES"]), cdiv(self.longest_k, shape["KEYS"])
        alone_b, alone_h, alone_q, alone_k = (n == 1 for n in bias.shape)
        # Packed sequences have parts of their own in a matrix of all tokens.
        alone_n = alone_b if call.cu_seqlens is None else alone_q and alone_k
        programs = 1
        for alone, count in (
            (alone_n, call.sequences), (alone_h, heads), (alone_q, tiled[0]), (alone_k, tiled[1]),
        ):  # fmt: skip
            programs *= 1 if alone else count
        if dbias.numel() and programs:
            attention_backward_bias[(programs,)](
                *self.read, dbias, *self.given, *call.numbers, *tiled, heads, call.sequences,
                *call.dims, *self.strides,
                SUM_N=alone_n, SUM_H=alone_h, SUM_Q=alone_q, SUM_K=alone_k,
                **self.constants, **shape,
            )  # fmt: skip
        return dbias

    def wide(self, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Fill terms, dq, dk and dv of heads above 256."""
        call, heads, kv_heads = self.call, self.q.shape[2], self.k.shape[2]
        boundaries = call.cu_seqlens, call.cu_seqlens_k
        given = (call.alibi_slopes, *boundaries, call.scale, *call.numbers)
        if self.terms.numel():
            parts, shape = wide_heads.shape(call.entry, self.q.shape[3])
            count = cdiv(self.longest_q, shape["QUERIES"])
            self.fill_terms(shape["QUERIES"], count)
            wide_heads.wide_backward_q[(count * parts * call.sequences * heads,)](
                *self.read, dq, *given, count, parts, heads, *call.dims, *self.strides,
                **call.constants, **shape,
            )  # fmt: skip
        for out, of_v in ((dk, False), (dv, True)):
            if out.numel():
                parts, shape = wide_heads.shape(call.entry, out.shape[3])
                count = cdiv(self.longest_k, shape["KEYS"])
                wide_heads.wide_backward_kv[(count * parts * call.sequences * kv_heads,)](
                    *self.read, out, *given, count, parts, kv_heads, *call.dims, *self.strides,
                    DV=of_v, **call.constants, **shape,
                )  # fmt: skip


def sink_gradient(sink: Tensor, softmax: Tensor, delta: Tensor) -> Tensor:
    """Σ over rows of P·(0 - delta): the gradient of a logit that has no value."""
    row_max, weight_sum = softmax
    weight = torch.exp2(sink.float()[None, :, None] * LOG2E.value - row_max) / weight_sum
    # The sum is 0 only where the sink is -inf and no key is seen, and then the sink weighs nothing.
    rows = torch.where(weight_sum == 0, 0.0, weight * -delta)
    return rows.sum((0, 2), dtype=torch.float64).to(sink.dtype)


def _forward(**given: Any) -> list[Tensor]:
    return Call(**given).forward(given["q"].dtype)


def _backward(
    *, d0: Tensor, d1: Tensor | None, s0: Tensor, y0: Tensor, **given: Any
) -> list[Tensor | None]:
    dlse = s0.new_zeros(s0.shape[1:]) if d1 is None else d1
    return Call(**given).backward(d0, dlse, y0, s0)


_NAMES = tuple(field.name for field in fields(Call))

_attention = differentiable(
    "attention_parallel",
    _forward,
    _backward,
    result_shapes,
    outputs=2,
    saved=1,
    reads_output=True,
    constants=("alibi_slopes",),
    takes=schema_of(Call),
)
