"""Masks and biases of pairs: from data, and from rules of positions.

A rule of positions is three numbers: query i sees key j where `low_j <= code_i < high_j`. A chunk,
a document or a remainder is its own code; what hides the future has no high; in a tree the code is
the number of a query in a depth-first walk, and its descendants have the numbers after its own.
Kernels then know one comparison for all rules, read a few numbers per token, and skip the tiles in
which it fails everywhere.
"""

from itertools import accumulate
from typing import TypedDict

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_boundaries, check_size, describe
from kernels.softmax.logits import LOG2E
from kernels.softmax.tree import check_tree, walk
from kernels.tiles import cdiv


class Structure(TypedDict, total=False):
    """Rules by which keys are hidden, see `reference.softmax.structure.Structure`.

    Args:
        document_ids: `[B, T_k]`, integers >= 0: hide keys of other documents.
        prefix: `[N]`, integers from 0 to T_k: hide keys after the query and
            after the first `prefix[n]`.
        chunk: C >= 1, hide keys where `j // C != p // C`.
        block_causal: C >= 1, hide keys where `j // C > p // C`.
        dilation: d >= 1, hide keys at distances that d does not divide.
        parents: `[T_q]`, integers: the queries are the last keys and a tree; of these a query sees
            itself and its ancestors. -1 is no parent.
        blocks: `[H|1, ceil(T_q / C), ceil(T_k / C)]`, bool: false hides a block of pairs.
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
_END = 2**31 - 1


def check_structure(
    structure: Structure | None, sizes: dict[str, int], sequences: int, device: torch.device,
    *, packed: bool,
) -> Structure:  # fmt: skip
    """The part of the contract of `structure` that its metadata shows.

    Raises:
        TypeError, ValueError: an entry is unknown, or of a wrong type, dtype or shape.
    """
    if structure is None:
        return {}
    if not isinstance(structure, dict):
        raise TypeError(f"structure: {describe(structure)}, expected a dict or None")
    shapes = {
        "document_ids": [sizes["B"], sizes["T_k"]],
        "prefix": [sequences],
        "parents": [sizes["T_q"]],
    }
    for name, rule in structure.items():
        called = f"structure: {name}"
        if name in _SIZES:
            check_size(called, rule)
            continue
        if name not in (*_NUMBERS, "blocks"):
            known = ", ".join(Structure.__annotations__)
            raise ValueError(f"structure: {name!r}, expected some of {known}")
        dtypes = (torch.bool,) if name == "blocks" else (torch.int32, torch.int64)
        if not isinstance(rule, Tensor) or rule.dtype not in dtypes:
            kind = "a bool tensor" if name == "blocks" else "a tensor of int32 or int64"
            raise TypeError(f"{called}: {describe(rule)}, expected {kind}")
        if rule.device != device:
            raise ValueError(f"{called}: on {rule.device}, expected {device} like the tensors")
        if name in shapes and list(rule.shape) != shapes[name]:
            raise ValueError(f"{called}: {describe(rule)}, expected {shapes[name]}")
    if ("blocks" in structure) != ("block_size" in structure):
        raise ValueError("structure: blocks and block_size: one given, expected both or neither")
    if "blocks" in structure:
        if packed:
            raise ValueError("structure: blocks: given with cu_seqlens, expected a dense batch")
        shape, size = structure["blocks"].shape, structure["block_size"]
        expected = [cdiv(sizes["T_q"], size), cdiv(sizes["T_k"], size)]
        if len(shape) != 3 or shape[0] not in (1, sizes["H"]) or list(shape[1:]) != expected:
            raise ValueError(
                f"structure: blocks: {list(shape)}, expected {[sizes['H'], *expected]}, or 1 head"
            )
    return structure


def check_pairs(
    name: str, x: Tensor | None, sizes: dict[str, int], device: torch.device, *dtypes: torch.dtype
) -> None:
    """Refuse what is no `[#B, #H, #T_q, #T_k]` of these dtypes, `#B` being B or 1."""
    if x is None:
        return
    dims = [sizes[dim] for dim in ("B", "H", "T_q", "T_k")]
    if not isinstance(x, Tensor) or x.dtype not in dtypes:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: {describe(x)}, expected {kinds}")
    fits = x.dim() == 4 and all(n in (1, size) for n, size in zip(x.shape, dims, strict=True))
    if not fits:
        raise ValueError(f"{name}: {describe(x)}, expected {dims} or sizes of 1")
    if x.device != device:
        raise ValueError(f"{name}: on {x.device}, expected {device} like the other arguments")


@torch.library.custom_op("attention_oracles::attention_rules", mutates_args=())
def attention_rules(
    q: Tensor,
    k: Tensor,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    document_ids: Tensor | None,
    prefix: Tensor | None,
    parents: Tensor | None,
    chunk: int | None,
    block_causal: int | None,
    dilation: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [R, B, T_q] of queries, lows and highs [R, B, T_k] of keys, int32, of R rules.

    Raises:
        ValueError: numbers out of range; waits for the device.
    """
    (batch, total_q), total_k = q.shape[:2], k.shape[1]
    queries, keys = _lengths("cu_seqlens", cu_seqlens, q), _lengths("cu_seqlens_k", cu_seqlens_k, k)
    p = _positions(
        [length - count for count, length in zip(queries, keys, strict=True)], queries, q
    )
    j = _positions([0] * len(keys), keys, k)
    end = torch.full_like(j, _END)
    rules: list[tuple[Tensor, Tensor, Tensor]] = []
    if document_ids is not None:
        if document_ids.numel() and document_ids.min() < 0:
            least = int(document_ids.min())
            raise ValueError(f"structure: document_ids: {least}, expected at least 0")
        ids = document_ids.unique(return_inverse=True)[1]
        first = torch.tensor([0, *accumulate(keys)][:-1], device=q.device)
        counts = torch.tensor(queries, device=q.device)
        at = p + first.repeat_interleave(counts) if cu_seqlens is not None else p
        code = ids[:, at.clamp(min=0)] if total_k else ids.new_zeros(batch, total_q)
        rules.append((torch.where(p < 0, -1, code), ids, ids + 1))
    if prefix is not None:
        _check_prefix(prefix.tolist(), keys if cu_seqlens is not None else keys * batch)
        if cu_seqlens is None:
            own = prefix[:, None]
        else:
            own = prefix.repeat_interleave(torch.tensor(keys, device=k.device))
        rules.append((p, torch.where(j < own, -_END, j), end))
    if chunk is not None:
        rules.append((p // chunk, j // chunk, j // chunk + 1))
    if block_causal is not None:
        rules.append((p // block_causal, j // block_causal, end))
    if dilation is not None:
        rules.append((p % dilation, j % dilation, j % dilation + 1))
    if parents is not None:
        rules.append(_tree(parents.tolist(), queries, keys, q.device))

    def joined(which: int, tokens: int) -> Tensor:
        each = [rule[which].expand(batch, tokens) for rule in rules]
        return torch.stack(each).to(torch.int32)

    return joined(0, total_q), joined(1, total_k), joined(2, total_k)


@attention_rules.register_fake
def _(q, k, cu_seqlens, cu_seqlens_k, *rules):
    count = sum(rule is not None for rule in rules)
    codes = q.new_empty(count, *q.shape[:2], dtype=torch.int32)
    lows, highs = k.new_empty(2, count, *k.shape[:2], dtype=torch.int32)
    return codes, lows.clone(), highs.clone()


def _lengths(name: str, cu_seqlens: Tensor | None, x: Tensor) -> list[int]:
    check_boundaries(name, cu_seqlens, x.shape[1])
    return [x.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()


def _positions(first: list[int], lengths: list[int], x: Tensor) -> Tensor:
    pairs = zip(first, lengths, strict=True)
    each = [torch.arange(start, start + n, device=x.device) for start, n in pairs]
    return torch.cat(each)


def _check_prefix(lengths: list[int], keys: list[int]) -> None:
    for n, (length, most) in enumerate(zip(lengths, keys, strict=True)):
        if not 0 <= length <= most:
            raise ValueError(f"structure: prefix: {length} at {n}, expected 0 to {most}, its keys")


def _tree(
    parents: list[int], queries: list[int], keys: list[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The rule of trees, one for each sequence; they hide none of the keys before the queries."""
    codes, lows, highs = [], [], []
    for tokens, known in zip(queries, keys, strict=True):
        own, parents = parents[:tokens], parents[tokens:]
        check_tree("structure: parents", own, known)
        enter, leave = walk(own)
        before = known - tokens
        codes += enter
        lows += [-_END] * before + enter
        highs += [_END] * before + leave
    code, low, high = (
        torch.tensor(x, dtype=torch.int32, device=device) for x in (codes, lows, highs)
    )
    return code, low, high


@triton.jit
def restrict(
    visible, query, key, in_query, in_key, pairs, steps, batch, head, start_q, start_k,
    num_queries, num_keys,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
):  # fmt: skip
    """Return the visible pairs that the rules leave, and their bias in base 2, 0 elsewhere.

    `pairs` is (bias, mask, table of blocks, codes, lows, highs), `steps` their strides: four of the
    bias, four of the mask, two of the table, the size of a block, those of a rule. `in_query` and
    `in_key` say which tokens exist, in the orientation of `query` and `key`.
    """
    added = 0.0
    query_at = query + start_q
    key_at = key + start_k
    for rule in tl.static_range(RULES):
        codes = pairs[3] + rule * steps[11] + batch * num_queries
        lows = pairs[4] + rule * steps[12] + batch * num_keys
        highs = pairs[5] + rule * steps[12] + batch * num_keys
        code = tl.load(codes + query_at, mask=in_query, other=0)
        low = tl.load(lows + key_at, mask=in_key, other=0)
        high = tl.load(highs + key_at, mask=in_key, other=0)
        visible = visible & (low <= code) & (code < high)
    if TABLED:
        block = pairs[2] + head * steps[8]
        block += (query // steps[10]).to(tl.int64) * steps[9] + key // steps[10]
        visible = visible & (tl.load(block, mask=visible, other=0) != 0)
    if MASKED:
        mask = pairs[1] + batch * steps[4] + head * steps[5]
        mask += query_at * steps[6] + key_at * steps[7]
        visible = visible & (tl.load(mask, mask=visible, other=0) != 0)
    if BIASED:
        bias = pairs[0] + batch * steps[0] + head * steps[1]
        bias += query_at * steps[2] + key_at * steps[3]
        added = tl.load(bias, mask=visible, other=0.0).to(tl.float32) * LOG2E
        visible = visible & (added != float("-inf"))
        added = tl.where(visible, added, 0.0)
    return visible, added


@triton.jit
def some(visible):
    """Whether any pair of a tile is visible."""
    return tl.max(tl.max(visible.to(tl.int32), 1), 0) > 0
