"""Relative position bias: a number for each distance of a query and a key, learnt in buckets."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from reference.arguments import checked


@checked
def relative_buckets(
    queries: int,
    keys: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Int64[Tensor, "queries keys"]:
    """Return the bucket of each pair of a query and a key.

        p_i = i + T_k - T_q                                   position of query i among the keys
        n   = max(p_i - j, 0)                                 or |p_i - j|, if bidirectional
        bucket = n                                            if n < E
        bucket = min(E + floor(L log(n / E) / log(max_distance / E)), E + L - 1)        else

    E = ⌊n_b / 2⌋ buckets are exact, and L = n_b - E grow with the distance, of the n_b = `buckets`
    there are, or of their half, if bidirectional: keys after the query have the second half. The
    floor is that of the real number; float32 is below it at some distances where it is an integer.

    Args:
        queries: T_q.
        keys: T_k.
        buckets: their number.
        max_distance: in tokens; all distances from it on have one bucket.
        bidirectional: keys after the query have buckets of their own. If not, they have that of
            the query itself, and are for `causal` to hide.

    Returns:
        buckets: from 0 to `buckets` - 1.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: negative T_q or T_k; fewer than 2 buckets of a direction, or an odd number for
            two; a max_distance that is not above E.

    Source: Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        Transformer, arXiv 1910.10683, section 2.1; E, L and the rounding from the paper's code,
        mesh_tensorflow 0.1.13, `_relative_position_bucket`.
    """
    for name, size in (("queries", queries), ("keys", keys)):
        if size < 0:
            raise ValueError(f"{name}: {size}, expected 0 or more")
    directions = 1 + bidirectional
    if buckets % directions or buckets < 2 * directions:
        what = "an even number from 4 on" if bidirectional else "at least 2"
        raise ValueError(f"buckets: {buckets}, expected {what}")
    each = buckets // directions
    exact = each // 2
    if max_distance <= exact:
        raise ValueError(f"max_distance: {max_distance}, expected more than {exact}")

    def bucket(n: int) -> int:
        if n < exact:
            return n
        # L log(n / E) >= m log(D / E), in integers.
        n, L = min(n, max_distance), each - exact
        reached = (m for m in range(L) if n**L * exact**m >= exact**L * max_distance**m)
        return exact + max(reached)

    of_distance = torch.tensor([bucket(n) for n in range(max(queries, keys) + 1)])
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    if bidirectional:
        return of_distance[distance.abs()] + each * (distance < 0)
    return of_distance[distance.clamp(min=0)]


@checked
def relative_bias(
    table: Float[Tensor, "H buckets"],
    queries: int,
    keys: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Float[Tensor, "1 H queries keys"]:
    """Return the `bias` of `attention` that T5 adds to its logits.

        bias_hij = table_hb,   b = the bucket of (i, j)

    The table gets a gradient: a sum over the pairs of each bucket, in float32 at least. T5 does
    not scale its logits: call `attention` with `scale=1.0`.

    Args:
        table: A number for each head and bucket. (T5's checkpoints have the transpose.)
        queries: T_q.
        keys: T_k. Queries are aligned with the last keys, as in `attention`.
        max_distance, bidirectional: As of `relative_buckets`.

    Returns:
        bias: In the dtype of the table.

    Raises:
        TypeError, ValueError: As of `relative_buckets`, of `table.shape[1]` buckets.

    Source: Raffel et al., arXiv 1910.10683, section 2.1.
    """
    b = relative_buckets(
        queries,
        keys,
        buckets=table.shape[1],
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    # The gradient is summed in float32 where the table has 16 bits.
    wide = torch.promote_types(table.dtype, torch.float32)
    return table.to(wide)[None, :, b.to(table.device)].to(table.dtype)
