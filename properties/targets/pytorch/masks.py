"""Which keys a query sees, as a function of indices; FlexAttention takes it, SDPA a table of it."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from reference.softmax.structure import Structure, check

# `(b, h, i, j) -> bool`, of indices that broadcast: batch, head, query and key.
Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def check_mask(
    q: Tensor,
    k: Tensor,
    *bounds: Tensor | None,
    window: int | None,
    slopes: Tensor | None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    structure: Structure | None = None,
) -> None:
    """Check the arguments of a mask built here; the library sees only the mask.

    Raises:
        TypeError, ValueError: arguments that the catalogue rejects.
    """
    if window is not None and (window < 1 or window != int(window)):
        raise ValueError(f"window: {window!r}, expected None or a positive number of keys")
    if slopes is not None and slopes.shape != q.shape[2:3]:
        raise ValueError(f"alibi_slopes: {list(slopes.shape)}, expected one for each query head")
    sizes = (len(q), q.shape[2], q.shape[1], k.shape[1])
    for name, x in (("bias", bias), ("mask", mask)):
        if x is None:
            continue
        if x.dim() != 4 or any(n not in (1, size) for n, size in zip(x.shape, sizes, strict=True)):
            raise ValueError(f"{name}: {list(x.shape)}, expected {list(sizes)}, or 1 for a size")
        if not (x.dtype == torch.bool if name == "mask" else x.is_floating_point()):
            raise TypeError(f"{name}: {x.dtype}, expected bool for a mask, floats for a bias")
    for x, ends in zip((q, k), bounds, strict=False):
        if ends is None:
            continue
        fits = ends.dim() == 1 and len(ends) > 0 and len(x) == 1
        if not fits or ends[0] != 0 or ends[-1] != x.shape[1] or bool((ends.diff() < 0).any()):
            raise ValueError(f"cu_seqlens: {ends}, expected boundaries from 0 to {x.shape[1]}")
    if structure is not None:
        queries, keys = boundaries(q, k, *bounds)
        check(
            structure,
            batch=len(q),
            heads=q.shape[2],
            queries=queries.diff().tolist(),
            keys=keys.diff().tolist(),
            packed=any(ends is not None for ends in bounds),
        )


def boundaries(
    q: Tensor, k: Tensor, cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Where the sequences of queries and of keys begin and end; a dense batch has one."""
    cu_seqlens_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    queries, keys = (
        torch.tensor([0, x.shape[1]], device=x.device) if ends is None else ends
        for x, ends in ((q, cu_seqlens), (k, cu_seqlens_k))
    )
    return queries, keys


def at(x: Tensor, *indices: Tensor) -> Tensor:
    """Elements of a tensor, in which a dim of size 1 stands for any size."""
    return x[tuple(0 if n == 1 else i for n, i in zip(x.shape, indices, strict=True))]


def positions(queries: Tensor, keys: Tensor) -> Callable[[Tensor], Tensor]:
    """For a query the index of the key at its position: last tokens are aligned."""
    of_query, behind = _sequence(queries), keys[1:] - queries[1:]
    return lambda i: i + behind[of_query[i]]


def seen(
    q: Tensor,
    k: Tensor,
    *bounds: Tensor | None,
    causal: bool,
    window: int | None,
    mask: Tensor | None,
    structure: Structure | None,
) -> Seen:
    """Which keys a query sees; sequences of a pack see their own."""
    queries, keys = boundaries(q, k, *bounds)
    of_query, of_key, position = _sequence(queries), _sequence(keys), positions(queries, keys)
    # Without keys there is nothing to hide.
    rules: Mapping[str, Any] = structure or {} if k.shape[1] else {}
    tree = _tree(rules["parents"], queries) if "parents" in rules else None
    packed = any(ends is not None for ends in bounds)

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n, p = of_query[i], position(i)
        seen = n == of_key[j]
        if causal:
            seen = seen & (j <= p)
        if window is not None:
            seen = seen & ((p - j).abs() < window)
        if mask is not None:
            seen = seen & at(mask, b, h, i, j)
        if tree is not None:
            same = j - (p - i)
            seen = seen & ((same < queries[n]) | tree[i, same.clamp(0, len(tree) - 1)])
        if "document_ids" in rules:
            ids, first = rules["document_ids"], p >= keys[n]
            seen = seen & first & (at(ids, b, p.clamp(min=0)) == at(ids, b, j))
        p, j = p - keys[n], j - keys[n]
        if "prefix" in rules:
            seen = seen & ((j <= p) | (j < rules["prefix"][n if packed else b]))
        if "chunk" in rules:
            seen = seen & (j // rules["chunk"] == p // rules["chunk"])
        if "block_causal" in rules:
            seen = seen & (j // rules["block_causal"] <= p // rules["block_causal"])
        if "dilation" in rules:
            seen = seen & ((p - j) % rules["dilation"] == 0)
        if "blocks" in rules:
            size = rules["block_size"]
            seen = seen & at(rules["blocks"], h, i // size, j // size)
        return seen

    return sees


def _sequence(bounds: Tensor) -> Tensor:
    """The index of each token's sequence."""
    tokens = torch.arange(int(bounds[-1]), device=bounds.device)
    return torch.bucketize(tokens, bounds[1:], right=True)


def _tree(parents: Tensor, queries: Tensor) -> Tensor:
    """Whether a query is another one or descends from it."""
    tree = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
    for first, stop in pairwise(queries.tolist()):
        for row in range(first, stop):
            if parents[row] >= 0:
                tree[row] |= tree[first + int(parents[row])]
    return tree
