"""Relative position bias of T5, by PyTorch: each diagonal of pairs has one number."""

from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.arguments import FLOATS, bind_dims, check_dtype, check_size, check_tensors, describe


def relative_buckets(
    queries: int,
    keys: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "T_q T_k"]:
    """The bucket of each pair of a query and a key, `reference.relative_buckets`.

    Args:
        queries, keys: T_q and T_k; queries are aligned with the last keys.
        buckets: their number; an even one, if bidirectional.
        max_distance: in tokens; all distances from it on have one bucket.
        bidirectional: keys after the query have buckets of their own.
        device: of the buckets; torch's default if None.

    Returns:
        buckets: `[T_q, T_k]`.

    Raises:
        TypeError: a number that is no int.
        ValueError: negative T_q or T_k; fewer than 2 buckets of a direction, or an odd number for
            two; a max_distance that is not above half the buckets of a direction.
    """
    of_diagonal = _of_diagonals(queries, keys, buckets, max_distance, bidirectional, device)
    return _spread(of_diagonal, queries, keys)


def relative_bias(
    table: Float[Tensor, "H buckets"],
    queries: int,
    keys: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Float[Tensor, "1 H T_q T_k"]:
    """The `bias` of `attention` that T5 adds to its logits, `reference.relative_bias`.

        bias_hij = table_hb,   b = the bucket of (i, j)

    T5 does not scale its logits: call `attention` with `scale=1.0`. The table gets a gradient,
    summed in float32. It is a matrix of all pairs, as any bias; `attention` reads it tile by tile.

    Args:
        table: `[H, buckets]`, float32, bfloat16 or float16.
        queries, keys: T_q and T_k; queries are aligned with the last keys.
        max_distance, bidirectional: as of `relative_buckets`.

    Returns:
        bias: `[1, H, T_q, T_k]`, in the dtype of the table.

    Raises:
        TypeError, ValueError: as of `relative_buckets`, of `table.shape[1]` buckets; a table of
            another shape or dtype.
    """
    check_tensors(table=table)
    bind_dims(table=(table, "H buckets"))
    check_dtype("table", table, *FLOATS)
    of_diagonal = _of_diagonals(
        queries, keys, table.shape[1], max_distance, bidirectional, table.device
    )
    return _Bias.apply(table, of_diagonal, queries, keys)


class _Bias(torch.autograd.Function):
    """A view of a number for each diagonal, whose gradient is summed in float32."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, of_diagonal: Tensor, queries: int, keys: int) -> Tensor:
        ctx.save_for_backward(of_diagonal)
        ctx.of_table = table.shape, table.dtype
        return _spread(table[:, of_diagonal], queries, keys)[None]

    @staticmethod
    def backward(ctx: Any, dbias: Tensor) -> tuple[Tensor, None, None, None]:
        (of_diagonal,) = ctx.saved_tensors
        shape, dtype = ctx.of_table
        *_, queries, keys = dbias.shape
        if dbias.numel() == 0:
            return dbias.new_zeros(shape), None, None, None
        rows = dbias[0].float().flip(-2)
        # Each row begins one place further on than the row before, so that diagonals are columns.
        columns = torch.nn.functional.pad(rows, (0, queries)).flatten(-2)[..., :-queries]
        sums = columns.unflatten(-1, (queries, keys + queries - 1)).sum(-2)
        # In a fixed order on a GPU too, unlike `index_add`.
        dtable = sums.new_zeros(shape[::-1]).index_put((of_diagonal,), sums.T, accumulate=True)
        return dtable.T.to(dtype, memory_format=torch.contiguous_format), None, None, None


def _of_diagonals(
    queries: int,
    keys: int,
    buckets: int,
    max_distance: int,
    bidirectional: bool,
    device: torch.device | str | None,
) -> Tensor:
    """Buckets of the distances j - p_i from -(T_k - 1) to T_q - 1."""
    check_size("queries", queries, 0)
    check_size("keys", keys, 0)
    check_size("buckets", buckets)
    check_size("max_distance", max_distance)
    if not isinstance(bidirectional, bool):
        raise TypeError(f"bidirectional: {describe(bidirectional)}, expected a bool")
    each = buckets // 2 if bidirectional else buckets
    if each < 2 or (bidirectional and buckets % 2):
        wanted = "an even number from 4 on" if bidirectional else "at least 2"
        raise ValueError(f"buckets: {buckets}, expected {wanted}")
    if max_distance <= each // 2:
        raise ValueError(f"max_distance: {max_distance}, expected more than {each // 2}")
    borders = torch.tensor(_borders(each, max_distance), device=device)
    distance = torch.arange(1 - keys, max(queries, 1 - keys), device=device)
    behind = (-distance).clamp(min=0)
    if not bidirectional:
        return torch.bucketize(behind, borders, right=True)
    return torch.bucketize(distance.abs(), borders, right=True) + each * (distance > 0)


def _borders(buckets: int, max_distance: int) -> list[int]:
    """The first distance of each bucket but bucket 0.

    E (D / E) ** (m / L), rounded up. The power is near an integer or is one, and float64 does not
    say which: (n / E) ** L >= (D / E) ** m does, in integers.
    """
    exact = buckets // 2
    growing = buckets - exact
    borders = list(range(1, exact + 1))
    for m in range(1, growing):
        least = exact**growing * max_distance**m
        n = max(exact, ceil(exact * (max_distance / exact) ** (m / growing)) - 1)
        while n**growing * exact**m < least:
            n += 1
        borders.append(n)
    return borders


def _spread(of_diagonal: Tensor, queries: int, keys: int) -> Tensor:
    """`[..., T_k - 1 + T_q]`, by diagonal, to `[..., T_q, T_k]`."""
    if queries == 0 or keys == 0:
        return of_diagonal[..., :0].reshape(*of_diagonal.shape[:-1], queries, keys)
    # Query i begins at the diagonal of its key 0.
    return of_diagonal.unfold(-1, keys, 1).flip(-2)
