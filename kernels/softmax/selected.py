"""Attention to selected blocks: the public op, the launches behind it, and the lists of queries and
blocks that they make of the indices.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, ParamSpec, TypeVar, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    bind_dims,
    check_boundaries,
    check_dtype,
    check_flags,
    check_one_dtype,
    check_size,
    describe,
)
from kernels.differentiable import differentiable
from kernels.modes import check_mode
from kernels.op import axes, op
from kernels.primitives.layout import dense_rows, outer_strides
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.softmax.arguments import (
    BAD_BOUNDARIES,
    MAX_DIM,
    LseOptions,
    check_heads,
    check_packing,
)
from kernels.softmax.launch import result_shapes
from kernels.softmax.logits import LOG2E
from kernels.softmax.ranges import powers
from kernels.softmax.selection import selected_backward_kv, selected_backward_q, selected_forward
from kernels.tiles import cdiv, next_power_of_2

P = ParamSpec("P")
R = TypeVar("R")

Select = Callable[..., tuple[Tensor, int]]


@dataclass(frozen=True)
class Selection:
    """The tables that the kernels read instead of the indices.

    Args:
        slots: `[B, T_q, G, M]` int32, each block that a query sees once, the largest first, then
            -1.
        counts: `[B, T_q, G]` int32, the slots that are not -1.
        positions: `[T_q]`, of each query among the keys of its sequence.
        starts: `[T_q]`, the first key of its sequence.
        first_block: `[T_q]`, the first block of its sequence among all.
        blocks: `[blocks, 3]`, of each block of all sequences: its first key, the place of that in
            its sequence, and the end of the sequence.
    """

    slots: Tensor
    counts: Tensor
    positions: Tensor
    starts: Tensor
    first_block: Tensor
    blocks: Tensor

    def queries_by_block(self) -> tuple[Tensor, Tensor]:
        """Return the queries that selected each block `[B, G, blocks]`, and where each starts."""
        batch, queries, kv_heads, _ = self.slots.shape
        count = self.blocks.shape[0]
        slots = self.slots.permute(0, 2, 1, 3)
        heads = torch.arange(batch * kv_heads, device=slots.device).view(batch, kv_heads, 1, 1)
        block = heads * count + self.first_block[:, None] + slots
        query = torch.arange(queries, device=slots.device)[:, None].expand_as(slots)
        there = slots >= 0
        block, order = block[there].sort(stable=True)
        ends = torch.arange(batch * kv_heads * count + 1, device=slots.device)
        return query[there][order], torch.searchsorted(block, ends)


def within(block_size: int, keys: int) -> int:
    """Return `block_size`, or `keys + 1` if it is larger: either makes the same blocks."""
    return min(block_size, keys + 1)


def select(
    indices: Tensor,
    block_size: int,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    keys: int,
) -> Selection:
    """Check the indices, and sort them.

    Raises:
        ValueError: an index below -1 or past the last block of its sequence; boundaries that do not
            fit.
    """
    queries, device = indices.shape[1], indices.device
    check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    bounds_q = [0, queries] if cu_seqlens is None else cu_seqlens.tolist()
    bounds_k = [0, keys] if cu_seqlens_k is None else cu_seqlens_k.tolist()
    each_q = torch.tensor([stop - start for start, stop in pairwise(bounds_q)])
    each_k = torch.tensor([stop - start for start, stop in pairwise(bounds_k)])
    each = (each_k + block_size - 1) // block_size
    first_block = torch.tensor([0, *accumulate(each.tolist())][:-1])
    first_q, first_k = torch.tensor(bounds_q[:-1]), torch.tensor(bounds_k[:-1])
    sequence = torch.arange(len(each)).repeat_interleave(each_q)
    positions = torch.arange(queries) + (each_k - each_q - first_q)[sequence]
    of_block = torch.arange(len(each)).repeat_interleave(each)
    place = (torch.arange(len(of_block)) - first_block[of_block]) * block_size
    blocks = torch.stack([first_k[of_block] + place, place, (first_k + each_k)[of_block]], -1)

    indices = indices.long()
    limit = each[sequence].to(device)[:, None, None]
    if bool(((indices < -1) | (indices >= limit)).any()):
        raise ValueError(
            f"indices: {int(indices.min())} to {int(indices.max())}, expected -1 to the last of "
            f"the blocks of {block_size} keys of each sequence, of which there are {each.tolist()}"
        )
    positions = positions.to(device)
    slots = torch.where(indices * block_size <= positions[:, None, None], indices, -1)
    slots = slots.sort(-1, descending=True).values
    again = torch.nn.functional.pad(slots[..., 1:] == slots[..., :-1], (1, 0))
    slots = torch.where(again, -1, slots).sort(-1, descending=True).values
    return Selection(
        slots=slots.int().contiguous(),
        counts=(slots >= 0).sum(-1).int(),
        positions=positions,
        starts=first_k[sequence].to(device),
        first_block=first_block[sequence].to(device),
        blocks=blocks.to(device),
    )


def _launch(
    tile: int, k: Tensor, v: Tensor, *, rows: int
) -> tuple[tuple[int, int], dict[str, int]]:
    """Key dim and value dim, and the constants of a kernel."""
    entry = tiles.TABLE["selected_attention", "parallel"][tile]
    key_dim, value_dim = k.shape[3], v.shape[3]
    constants = {
        "ROWS": rows,
        "KEYS": entry.keys,
        "PAD_K": max(16, next_power_of_2(key_dim)),
        "PAD_V": max(16, next_power_of_2(value_dim)),
        "num_warps": entry.num_warps,
        "num_stages": entry.num_stages,
    }
    return (key_dim, value_dim), constants


def _rows(tile: int, group: int) -> int:
    """How many heads of a group a program holds."""
    entry = tiles.TABLE["selected_attention", "parallel"][tile]
    return min(entry.tokens, max(16, next_power_of_2(group)))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, indices: Tensor, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, block_size: int, scale: float, tile: int, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """o and lse of `selected_attention`, where a kv head may have several selections of its query
    heads. For the backward pass also [2, B, H, T], the maximum of a row's
    base-2 logits and the sum of their powers of 2 after it is subtracted. q, k and v are rounded to
    `dtype`; if they are float32, o and their gradients are too.
    """
    batch, queries, heads, _ = q.shape
    select_heads = indices.shape[2]
    group = heads // select_heads
    o = q.new_empty(batch, queries, heads, v.shape[3])
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    softmax = lse.new_empty(2, *lse.shape)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    block_size = within(block_size, k.shape[1])
    selection = select(indices, block_size, cu_seqlens, cu_seqlens_k, k.shape[1])
    if lse.numel() == 0:
        return [o, lse, softmax]
    rows = _rows(tile, group)
    parts = cdiv(group, rows)
    dims, constants = _launch(tile, k, v, rows=rows)
    q, k, v = dense_rows(q, k, v)
    selected_forward[(batch * queries * select_heads * parts,)](
        q, k, v, o, lse, *softmax,
        selection.slots, selection.counts, selection.positions, selection.starts,
        scale * LOG2E.value, queries, select_heads, indices.shape[3], block_size, parts,
        select_heads // k.shape[2], group, *dims,
        *outer_strides(q, k, v), **constants,
    )  # fmt: skip
    return [o, lse, softmax]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, indices: Tensor, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, block_size: int, scale: float, tile: int, dtype: torch.dtype,
    d0: Tensor, d1: Tensor | None, s0: Tensor, y0: Tensor,
) -> list[Tensor]:  # fmt: skip
    softmax, o, do = s0, y0, d0
    dlse = softmax.new_zeros(softmax.shape[1:]) if d1 is None else d1
    batch, queries, heads, key_dim = q.shape
    keys, kv_heads, value_dim = v.shape[1:]
    select_heads = indices.shape[2]
    group, share = heads // select_heads, select_heads // kv_heads
    dq = q.new_empty(batch, queries, heads, key_dim)
    dk = k.new_empty(batch, keys, kv_heads, key_dim)
    dv = v.new_empty(batch, keys, kv_heads, value_dim)
    deltas = softmax.new_empty(batch, heads, queries)
    block_size = within(block_size, keys)
    selection = select(indices, block_size, cu_seqlens, cu_seqlens_k, keys)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    scaled = powers(do, dlse, v, cu_seqlens, cu_seqlens_k)
    if scaled is not None:
        do, dlse = scaled.divided(do, dlse)
    do = do.to(dtype)
    q, k, v, do = dense_rows(q, k, v, do)
    strides = outer_strides(q, k, v, do)
    factor = scale * LOG2E.value
    if dq.numel():
        rows = _rows(tile, group)
        parts = cdiv(group, rows)
        dims, constants = _launch(tile, k, v, rows=rows)
        selected_backward_q[(batch * queries * select_heads * parts,)](
            q, k, v, o, do, dlse.contiguous(), *softmax, deltas, dq,
            selection.slots, selection.counts, selection.positions, selection.starts,
            scale, factor, queries, select_heads, indices.shape[3], block_size, parts,
            share, group, *dims, *strides, **constants,
        )  # fmt: skip
    if dk.numel():
        entry = tiles.TABLE["selected_attention", "parallel"][tile]
        dims, constants = _launch(tile, k, v, rows=entry.tokens)
        count, parts = selection.blocks.shape[0], cdiv(block_size, entry.keys)
        selected_backward_kv[(batch * kv_heads * count * parts,)](
            q, k, v, do, *softmax, deltas, dk, dv,
            *selection.queries_by_block(), selection.positions, selection.blocks,
            scale, factor, queries, keys, kv_heads, count, block_size, parts,
            share, group, *dims, *strides, **constants,
        )  # fmt: skip
    if scaled is not None:
        scaled.restore(dq, dk, dv)
    return [dq, dk, dv]


_selected = differentiable(
    "selected_parallel", _forward, _backward, result_shapes, outputs=2, saved=1, reads_output=True
)


@dataclass(frozen=True)
class Call:
    """The checked arguments of a call that ops of selected attention share.

    Args:
        scale: as kernels take it.
        dtype: that of the tensors, in which products are.
    """

    scale: float
    cu_seqlens: Tensor | None
    cu_seqlens_k: Tensor | None
    tile: int
    dtype: torch.dtype

    @property
    def packs(self) -> tuple[Tensor | None, Tensor | None]:
        return self.cu_seqlens, self.cu_seqlens_k


def checked(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, mode: str, tile: int | None, *, return_lse: bool = False,
) -> Call:  # fmt: skip
    """Check what all of these ops take."""
    sizes = bind_dims(q=(q, "B T_q H K"), k=(k, "B T_k G K"), v=(v, "B T_k G V"))
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_heads(sizes)
    check_flags(return_lse=return_lse)
    cu_seqlens, cu_seqlens_k = check_packing(cu_seqlens, cu_seqlens_k, sizes, q.device)
    check_mode(mode, "parallel")
    tile = tiles.choose(
        "selected_attention", "parallel",
        dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
    )  # fmt: skip
    return Call(resolve_scale(scale, sizes["K"]), cu_seqlens, cu_seqlens_k, tile, dtype)


def attend(
    call: Call, q: Tensor, k: Tensor, v: Tensor, indices: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """o and lse."""
    o, lse, _ = _selected(
        q, k, v, indices, *call.packs, block_size, call.scale, call.tile, call.dtype
    )
    return o, lse


def check_counts(**counts: int) -> None:
    """Raise a TypeError for a count that is no int, and a ValueError for one below 1."""
    for name, count in counts.items():
        check_size(name, count)


ABOUT = (
    f"Differentiable once. K and V are 1 to {MAX_DIM}. A call waits for the device, to read "
    "indices and boundaries."
)
TILE = "That of `selected_attention`."
RAISES = (f"K or V outside 1 to {MAX_DIM}", "H not G, 2 G, 3 G, ...", BAD_SCALE, *BAD_BOUNDARIES)
_COMMON = ("q", "k", "v", "cu_seqlens", "cu_seqlens_k")


def selecting(
    select: Select, *, indexer: Sequence[str] = (), raises: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the public function of an op that selects the blocks that each query attends to.

    Args:
        select: `(call, q, k, **rest) -> (indices, block_size)`; `rest` has the arguments that only
            this op has.
        indexer: float tensors by which it selects. They get no gradient.
        raises: reasons for a ValueError that others do not have.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(page).parameters
        dims = {name: " ".join(axes(p.annotation)) for name, p in parameters.items()}
        own = [name for name, spec in dims.items() if spec and name not in _COMMON]
        counts = [name for name, p in parameters.items() if type(p.default) is int]
        too_low = f"a {' or '.join(counts)} below 1"
        frozen = f" No gradient reaches {', '.join(indexer)}." if indexer else ""
        texts = {"lse": "float32; None unless `return_lse`."}
        if page.__name__ != "selected_attention":
            texts["tile"] = TILE

        def run(
            *, q: Tensor, k: Tensor, v: Tensor, scale: float | None, cu_seqlens: Tensor | None,
            cu_seqlens_k: Tensor | None, return_lse: bool, mode: str, tile: int | None, **rest: Any,
        ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
            tensors = {"q": q, "k": k, **{name: rest[name] for name in own}}
            bind_dims(**{name: (x, dims[name]) for name, x in tensors.items()})
            check_counts(**{name: rest[name] for name in counts})
            call = checked(
                q, k, v, scale, cu_seqlens, cu_seqlens_k, mode, tile, return_lse=return_lse
            )
            for name in indexer:
                check_dtype(name, rest[name], q.dtype, torch.float32)
                rest[name] = rest[name].detach()
            o, lse = attend(call, q, k, v, *select(call, q, k, **rest))
            return o, lse if return_lse else None

        return op(
            run,
            outputs=("o", "lse"),
            about=f"{ABOUT}{frozen}",
            same_dtype=("q", "k", "v"),
            texts=texts,
            raises=[*RAISES, too_low, *raises],
        )(page)

    return decorate


def _given(
    call: Call, q: Tensor, k: Tensor, *, indices: Tensor, block_size: int
) -> tuple[Tensor, int]:
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices: {describe(indices)}, expected int32 or int64")
    return indices, block_size


@selecting(_given, raises=["an index below -1 or past the last block of its sequence"])
def selected_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    indices: Int[Tensor, "B T_q G M"],
    *,
    block_size: int = 64,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Causal softmax attention to the blocks of keys that each query selects."""
