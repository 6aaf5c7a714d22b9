"""The blocks that NSA, MoBA, DSA and MSA select: scores in PyTorch, in float32, and a stable sort.

Each is a custom op without gradients, which reads the boundaries of packed sequences. Of equal
scores the lower index wins, and -0.0 equals 0.0.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from kernels.arguments import check_boundaries
from kernels.tiles import cdiv


def each_sequence(
    queries: int, keys: int, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None
) -> Iterator[tuple[slice, slice]]:
    """The queries and the keys of each sequence; of all at once in a dense batch.

    Raises:
        ValueError: boundaries that do not fit.
    """
    if cu_seqlens is None or cu_seqlens_k is None:
        yield slice(0, queries), slice(0, keys)
        return
    check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    bounds = pairwise(cu_seqlens.tolist()), pairwise(cu_seqlens_k.tolist())
    for i, j in zip(*bounds, strict=True):
        yield slice(*i), slice(*j)


def without_autocast(x: Tensor) -> torch.autocast:
    """Products in the dtype of their operands, whatever the context."""
    return torch.autocast(x.device.type, enabled=False)


def positions(i: slice, j: slice, device: torch.device) -> tuple[Tensor, Tensor]:
    """The positions of queries among the keys of their sequence `[T_q, 1]`, and of keys `[T_k]`."""
    queries, keys = i.stop - i.start, j.stop - j.start
    p = torch.arange(keys - queries, keys, device=device)
    return p[:, None], torch.arange(keys, device=device)


def mean_of_blocks(x: Tensor, block_size: int) -> Tensor:
    """The means of the whole blocks of `[B, T, G, D]`, in float32 `[B, G, blocks, D]`."""
    # A block longer than the sequence is never whole, and its size may not fit in strides.
    block_size = min(block_size, x.shape[1] + 1)
    whole = x.shape[1] // block_size
    blocks = x[:, : whole * block_size].unflatten(1, (whole, block_size))
    return blocks.float().mean(2).transpose(1, 2)


def by_group(q: Tensor, groups: int) -> Tensor:
    """`[B, T, H, D]` as `[B, G, R, T, D]` in float32."""
    return q.unflatten(2, (groups, q.shape[2] // groups)).permute(0, 2, 3, 1, 4).float()


def _padded(scores: Tensor, blocks: int) -> Tensor:
    return torch.nn.functional.pad(scores, (0, blocks - scores.shape[-1]))


def _best(
    shape: tuple[int, int, int, int],
    scores_of: Callable[[slice, slice], Tensor],
    keys: int,
    device: torch.device,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """Return the best of the scores `[B, heads, T_q, blocks]` of each sequence, in `[B, T_q, heads,
    M]`; -1 where fewer than M are above -inf.
    """
    best = torch.full(shape, -1, dtype=torch.int32, device=device)
    for i, j in each_sequence(shape[1], keys, cu_seqlens, cu_seqlens_k):
        scores = scores_of(i, j).transpose(1, 2)
        # Adding 0.0 turns -0.0 into 0.0, so that a sort by bits orders them by index, too.
        ordered, order = (scores + 0.0).sort(dim=-1, descending=True, stable=True)
        order = torch.where(ordered == -math.inf, -1, order)[..., : shape[3]]
        best[:, i, :, : order.shape[3]] = order.int()
    return best


def _blocks(i: slice, j: slice, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Positions `[T_q, 1]`, the block of each, and the numbers of all blocks."""
    p, _ = positions(i, j, device)
    b = torch.arange(cdiv(j.stop - j.start, size), device=device)
    return p, p.div(size, rounding_mode="floor"), b


def _slots(top_k: int, keys: int, block_size: int) -> int:
    return min(top_k, cdiv(keys, block_size))


@torch.library.custom_op("attention_oracles::select_of_moba", mutates_args=())
def select_of_moba(
    q: Tensor, k: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, block_size: int,
    top_k: int,
) -> Tensor:  # fmt: skip
    """The own block of each query and head, and past ones by `q · mean(k)`: `[B, T_q, H, M]`."""

    def scores(i: slice, j: slice) -> Tensor:
        _, own, b = _blocks(i, j, block_size, q.device)
        means = mean_of_blocks(k[:, j], block_size)[:, :, None]
        past = (by_group(q[:, i], k.shape[2]) @ means.mT).flatten(1, 2)
        past = torch.where(b < own, _padded(past, len(b)), -math.inf)
        return torch.where(b == own, math.inf, past)

    shape = (*q.shape[:3], _slots(top_k, k.shape[1], block_size))
    with without_autocast(q):
        return _best(shape, scores, k.shape[1], q.device, cu_seqlens, cu_seqlens_k)


@select_of_moba.register_fake
def _(q, k, cu_seqlens, cu_seqlens_k, block_size, top_k):
    slots = _slots(top_k, k.shape[1], block_size)
    return q.new_empty(*q.shape[:3], slots, dtype=torch.int32)


@torch.library.custom_op("attention_oracles::select_of_dsa", mutates_args=())
def select_of_dsa(
    q_index: Tensor, k_index: Tensor, w: Tensor, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, top_k: int,
) -> Tensor:  # fmt: skip
    """The tokens of each query by `Σ_h w relu(q_index · k_index)`: `[B, T_q, 1, M]`."""

    def scores(i: slice, j: slice) -> Tensor:
        p, t = positions(i, j, q_index.device)
        sums = w.new_zeros(w.shape[0], i.stop - i.start, len(t), dtype=torch.float32)
        for h in range(w.shape[2]):
            products = q_index[:, i, h].float() @ k_index[:, j].float().mT
            sums = sums + w[:, i, h, None].float() * torch.relu(products)
        return torch.where(t <= p, sums, -math.inf)[:, None]

    shape = (*q_index.shape[:2], 1, _slots(top_k, k_index.shape[1], 1))
    with without_autocast(w):
        return _best(shape, scores, k_index.shape[1], w.device, cu_seqlens, cu_seqlens_k)


@select_of_dsa.register_fake
def _(q_index, k_index, w, cu_seqlens, cu_seqlens_k, top_k):
    slots = _slots(top_k, k_index.shape[1], 1)
    return q_index.new_empty(*q_index.shape[:2], 1, slots, dtype=torch.int32)


@torch.library.custom_op("attention_oracles::select_of_msa", mutates_args=())
def select_of_msa(
    q_index: Tensor, k_index: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    block_size: int, top_k: int,
) -> Tensor:  # fmt: skip
    """The own block of each query and group, and past ones by the largest score of their tokens:
    `[B, T_q, G, M]`.
    """

    def scores(i: slice, j: slice) -> Tensor:
        p, own, b = _blocks(i, j, block_size, q_index.device)
        _, t = positions(i, j, q_index.device)
        keys = k_index[:, j, None].transpose(1, 2).float()
        tokens = q_index[:, i].transpose(1, 2).float() @ keys.mT
        tokens = torch.where(t <= p, tokens, -math.inf)
        size = min(block_size, len(t) + 1)
        rest = len(b) * size - len(t)
        tokens = torch.nn.functional.pad(tokens, (0, rest), value=-math.inf)
        best = tokens.unflatten(-1, (len(b), size)).amax(-1)
        return torch.where(b == own, math.inf, best)

    shape = (*q_index.shape[:3], _slots(top_k, k_index.shape[1], block_size))
    with without_autocast(q_index):
        length, device = k_index.shape[1], q_index.device
        return _best(shape, scores, length, device, cu_seqlens, cu_seqlens_k)


@select_of_msa.register_fake
def _(q_index, k_index, cu_seqlens, cu_seqlens_k, block_size, top_k):
    slots = _slots(top_k, k_index.shape[1], block_size)
    return q_index.new_empty(*q_index.shape[:3], slots, dtype=torch.int32)


def compressed_weights(
    q: Tensor, k: Tensor, i: slice, j: slice, block_size: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax over the means of the blocks that end at or before a query, `[B, G, R, T_q, whole]`,
    0 for a query that none does; and the means `[B, G, 1, whole, K]`.
    """
    p, _ = positions(i, j, q.device)
    means = mean_of_blocks(k[:, j], block_size)[:, :, None]
    s = scale * (by_group(q[:, i], k.shape[2]) @ means.mT)
    ends = torch.arange(1, means.shape[3] + 1, device=q.device) * block_size
    weights = torch.softmax(torch.where(ends <= p + 1, s, -math.inf), -1)
    return torch.where(ends <= p + 1, weights, 0.0), means


@torch.library.custom_op("attention_oracles::select_of_nsa", mutates_args=())
def select_of_nsa(
    q: Tensor, k: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, block_size: int,
    top_k: int, local_blocks: int, scale: float,
) -> Tensor:  # fmt: skip
    """The first and the local blocks of each query and group, and others by their compressed
    weights, summed over the heads of a group: `[B, T_q, G, M]`.
    """

    def scores(i: slice, j: slice) -> Tensor:
        p, own, b = _blocks(i, j, block_size, q.device)
        weights, _ = compressed_weights(q, k, i, j, block_size, scale)
        sums = weights.sum(2)
        # Whether numbers below the smallest normal one are kept depends on the device.
        sums = torch.where(sums < torch.finfo(torch.float32).smallest_normal, 0.0, sums)
        best = _padded(sums, len(b))
        best = torch.where((b == 0) | (b > own - local_blocks), math.inf, best)
        return torch.where(b * block_size <= p, best, -math.inf)

    shape = (*q.shape[:2], k.shape[2], _slots(top_k, k.shape[1], block_size))
    with without_autocast(q):
        return _best(shape, scores, k.shape[1], q.device, cu_seqlens, cu_seqlens_k)


@select_of_nsa.register_fake
def _(q, k, cu_seqlens, cu_seqlens_k, block_size, top_k, local_blocks, scale):
    slots = _slots(top_k, k.shape[1], block_size)
    return q.new_empty(*q.shape[:2], k.shape[2], slots, dtype=torch.int32)
