"""Masks that have a structure: which keys a query sees as a function of two positions.

`pairs` says it of each pair as the rule is written. `intervals` says it as the second form of
attention uses it: all rules but the table of blocks are one comparison of three numbers,

    query i sees key j   if and only if   low_j <= code_i < high_j.

Positions are p_i = i + T_k - T_q for a query and j for a key. A mask is a plain dict, so that any
package can make one; the rules of its entries are joined by "and", as are all masks of attention.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from reference.arguments import describe


class Structure(TypedDict, total=False):
    """Rules by which keys are hidden; an entry that is left out hides nothing.

    Args:
        document_ids: `[B, T_k]`, integers >= 0: a key of another document than that of position p
            is hidden. A query before the first key has no document and sees nothing.
        prefix: `[N]`, integers from 0 to T_k: hide the keys after the query, but for the first
            `prefix[n]`, which all see (prefix-LM; with `causal` it would hide nothing more).
        chunk: C >= 1, hide keys of another chunk: `j // C != p // C`.
        block_causal: C >= 1, hide keys of later blocks: `j // C > p // C`.
        dilation: d >= 1, hide keys at distances that d does not divide.
        parents: `[T_q]`, integers: the queries are the last T_q keys and a tree; the parent of each
            is an earlier query, or -1 for none. Of these keys a query sees itself and its
            ancestors, and of the keys before them all. Needs T_k >= T_q.
        blocks: `[H|1, ceil(T_q / C), ceil(T_k / C)]`, bool: hide key j from query i where
            `blocks[h, i // C, j // C]` is false. Not for packed sequences.
        block_size: C >= 1, of `blocks`.
    """

    document_ids: Tensor
    prefix: Tensor
    chunk: int
    block_causal: int
    dilation: int
    parents: Tensor
    blocks: Tensor
    block_size: int


_SIZES = ("chunk", "block_causal", "dilation", "block_size")
_NUMBERS = ("document_ids", "prefix", "parents")


def check(
    structure: Structure,
    *,
    batch: int,
    heads: int,
    queries: Sequence[int],
    keys: Sequence[int],
    packed: bool,
) -> None:
    """Raise if an entry is unknown, or not as `Structure` says.

    Args:
        queries, keys: tokens of each sequence; one number for a dense batch.

    Raises:
        TypeError, ValueError: as `Structure` says; the message names the entry.
    """
    sequences = len(queries) if packed else batch
    total_q, total_k = sum(queries), sum(keys)
    shapes = {"document_ids": [batch, total_k], "prefix": [sequences], "parents": [total_q]}
    for name, value in structure.items():
        _check_entry(name, value, shapes)
    if ("blocks" in structure) != ("block_size" in structure):
        raise ValueError("structure: blocks and block_size: one given, expected both or neither")
    if "blocks" in structure:
        if packed:
            raise ValueError("structure: blocks: given with cu_seqlens, expected a dense batch")
        size = structure["block_size"]
        _check_blocks(
            structure["blocks"], heads, math.ceil(total_q / size), math.ceil(total_k / size)
        )
    if "document_ids" in structure and (structure["document_ids"] < 0).any():
        least = int(structure["document_ids"].min())
        raise ValueError(f"structure: document_ids: {least}, expected at least 0")
    if "prefix" in structure:
        each = keys if packed else [total_k] * batch
        for n, (length, most) in enumerate(zip(structure["prefix"].tolist(), each, strict=True)):
            if not 0 <= length <= most:
                raise ValueError(
                    f"structure: prefix: {length} at {n}, expected 0 to {most}, its keys"
                )
    if "parents" in structure:
        _check_parents(structure["parents"].tolist(), queries, keys)


def _check_entry(name: str, value: object, shapes: Mapping[str, list[int]]) -> None:
    """Check the name and the type of an entry, and the shape if `shapes` has it."""
    called = f"structure: {name}"
    if name in _SIZES:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{called}: {describe(value)}, expected int")
        if value < 1:
            raise ValueError(f"{called}: {value}, expected at least 1")
        if value >= 2**63:
            raise ValueError(f"{called}: {value}, expected at most 2^63 - 1")
    elif name not in (*_NUMBERS, "blocks"):
        known = ", ".join(Structure.__annotations__)
        raise ValueError(f"structure: {name!r}, expected some of {known}")
    elif not isinstance(value, Tensor):
        raise TypeError(f"{called}: {describe(value)}, expected a tensor")
    elif name == "blocks":
        if value.dtype != torch.bool:
            raise TypeError(f"{called}: {value.dtype}, expected bool")
    elif value.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{called}: {value.dtype}, expected int32 or int64")
    elif list(value.shape) != shapes[name]:
        raise ValueError(f"{called}: {list(value.shape)}, expected {shapes[name]}")


def _check_blocks(blocks: Tensor, heads: int, rows: int, columns: int) -> None:
    shape = list(blocks.shape)
    if len(shape) != 3 or shape[0] not in (1, heads) or shape[1:] != [rows, columns]:
        expected = [heads, rows, columns]
        raise ValueError(f"structure: blocks: {shape}, expected {expected}, or 1 head")


def _check_parents(parents: list[int], queries: Sequence[int], keys: Sequence[int]) -> None:
    first = 0
    for n, tokens in enumerate(queries):
        if tokens > keys[n]:
            raise ValueError(
                f"structure: parents: of {tokens} queries with {keys[n]} keys, "
                "expected a key of each query"
            )
        for i in range(tokens):
            if not -1 <= parents[first + i] < i:
                raise ValueError(
                    f"structure: parents: {parents[first + i]} at {first + i}, "
                    f"expected -1 or an earlier query, at most {i - 1}"
                )
        first += tokens


def of_sequences(structure: Structure, n: slice, i: slice, j: slice) -> Structure:
    """The structure of sequences n, with the queries i and the keys j of a packed batch."""
    part = structure.copy()
    if "document_ids" in part:
        part["document_ids"] = part["document_ids"][:, j]
    if "prefix" in part:
        part["prefix"] = part["prefix"][n]
    if "parents" in part:
        part["parents"] = part["parents"][i]
    return part


def pairs(structure: Structure, i: Tensor, j: Tensor, p: Tensor) -> Iterator[Tensor]:
    """For each rule, whether a query sees a key: `[B|1, H|1, T_q, T_k]`.

    Args:
        i, p: indices and positions of the queries `[T_q, 1]`.
        j: indices of the keys `[1, T_k]`.
    """
    T_k = j.shape[1]
    if "document_ids" in structure:
        ids = structure["document_ids"]
        of_query = ids[:, p.clamp(min=0)[:, 0]] if T_k else ids.new_zeros(len(ids), len(p))
        yield ((of_query[:, :, None] == ids[:, None, :]) & (p >= 0))[:, None]
    if "prefix" in structure:
        yield (j <= p) | (j < structure["prefix"][:, None, None, None])
    if "chunk" in structure:
        yield (j // structure["chunk"] == p // structure["chunk"])[None, None]
    if "block_causal" in structure:
        yield (j // structure["block_causal"] <= p // structure["block_causal"])[None, None]
    if "dilation" in structure:
        yield ((p - j) % structure["dilation"] == 0)[None, None]
    if "parents" in structure:
        before = T_k - len(i)
        seen = torch.ones(len(i), T_k, dtype=torch.bool, device=j.device)
        seen[:, before:] = torch.eye(len(i), dtype=torch.bool, device=j.device)
        for row, parent in enumerate(structure["parents"].tolist()):
            if parent >= 0:
                seen[row, before:] |= seen[parent, before:]
        yield seen[None, None]
    if "blocks" in structure:
        size = structure["block_size"]
        yield structure["blocks"][:, i // size, j // size][None]


Interval = tuple[Tensor, Tensor, Tensor]


def intervals(structure: Structure, T_q: int, T_k: int, device: torch.device) -> Iterator[Interval]:
    """For each rule but `blocks`, code `[B|1, T_q]` of queries, low and high `[B|1, T_k]` of keys.

    A chunk, a document or the remainder of a position is a code of its own; a rule that hides the
    future only has no high. In the tree a code is the number of a query in a walk that meets a
    parent before its children; the descendants of a query are then the numbers after its own.
    """
    p = torch.arange(T_k - T_q, T_k, device=device)[None]
    j = torch.arange(T_k, device=device)[None]
    never, always = torch.full_like(j, -(2**31)), torch.full_like(j, 2**31 - 1)
    if "document_ids" in structure:
        ids = structure["document_ids"].long()
        # A query before the first key has the code -1, which no key allows.
        padded = torch.nn.functional.pad(ids, (max(T_q - T_k, 0), 0), value=-1)
        yield padded[:, padded.shape[1] - T_q :], ids, ids + 1
    if "prefix" in structure:
        length = structure["prefix"][:, None]
        yield p, torch.where(j < length, never, j), always.expand(len(length), -1)
    if "chunk" in structure:
        size = structure["chunk"]
        yield p // size, j // size, j // size + 1
    if "block_causal" in structure:
        size = structure["block_causal"]
        yield p // size, j // size, always
    if "dilation" in structure:
        step = structure["dilation"]
        yield p % step, j % step, j % step + 1
    if "parents" in structure:
        enter, leave = _walk(structure["parents"].tolist())
        code, end = (torch.tensor(x, dtype=torch.int64, device=device) for x in (enter, leave))
        before = T_k - T_q
        yield (
            code[None],
            torch.cat([never[0, :before], code])[None],
            torch.cat([always[0, :before], end])[None],
        )


def _walk(parents: list[int]) -> tuple[list[int], list[int]]:
    """When a depth-first walk meets each node, and when it has met all its descendants."""
    sizes = [1] * len(parents)
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    enter, free, roots = [0] * len(parents), [0] * len(parents), 0
    for node, parent in enumerate(parents):
        if parent < 0:
            enter[node], roots = roots, roots + sizes[node]
        else:
            enter[node] = free[parent]
            free[parent] += sizes[node]
        free[node] = enter[node] + 1
    return enter, [first + size for first, size in zip(enter, sizes, strict=True)]
