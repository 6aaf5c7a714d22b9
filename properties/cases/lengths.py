"""Strategies for the lengths of sequences: around the edges of tiles, within an amount of work."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from properties.cases.case import Case
from properties.cases.extents import MANY_OF_TWO, Extent, large_count
from properties.cases.tensors import work
from properties.catalogue.op import Op

# The most numbers that a form of the oracle may hold at once. The float64 oracle and its twelve
# perturbed runs for the budgets then take at most a second or so on one core, and a quarter on
# average; the simulator is faster. Wide heads, long sequences and many heads are drawn, but not all
# in one case: a kernel treats each head and tile by itself.
WORK = 300_000
# The most numbers that a case with many tokens may hold.
MUCH_WORK = 3 * WORK
# The most of a case with one of each dim, whose sequence passes the end of a tile of 2048 tokens
# though a form of the oracle holds all pairs of them: three seconds on one core.
_PAIRS_OF_A_TILE = 20 * WORK
# Kernels change their path at powers of two: the largest is passed by one. One token less, and the
# last of several whole blocks, or of several splits of the keys, is not full.
MOST_TOKENS = 4097
_POWERS = tuple(2**n + d for n in (8, 9, 10, 11, 12) for d in (-1, 0, 1))
T = TypeVar("T")
_KEYS = ("the queries'", "the queries'", "own", "own", "equal", "cached", "cached")


# Cached, because building and validating a strategy takes longer than drawing from it.
@lru_cache(maxsize=4096, typed=True)
def any_of(*choices: T) -> SearchStrategy[T]:
    """One of these; equal ones make it likelier."""
    return st.sampled_from(choices)


@lru_cache(maxsize=2048)
def token_counts(tiles: Sequence[int], longest: int, *, empty: bool) -> SearchStrategy[int]:
    """Token counts: 1 to 8, next to multiples of these, anything up to `longest`, or 0."""
    few = st.sampled_from([n for n in (1, 1, 2, 3, 4, 5, 7, 8) if n <= longest])
    around = [(m - 1, m, m + 1, 2 * m - 1, 2 * m, *[2 * m + 1] * 2, 3 * m - 1) for m in tiles]
    edges = sorted(n for each in around for n in each if 1 <= n <= longest)
    counts = [few, st.sampled_from(edges), st.sampled_from(edges)] if edges else [few]
    counts.append(st.integers(1, longest))
    return st.one_of(*counts, st.just(0), st.just(0)) if empty else st.one_of(*counts)


def with_lengths(
    draw: DrawFn, op: Op, case: Case, edges: Sequence[int], longest: int, extent: Extent
) -> Case:
    """Draw the tokens of each sequence, and its keys where they are not the queries' tokens.

    Args:
        edges: tokens of the tiles, next to whose multiples lengths are drawn.
    """
    packed = case.packed
    count = draw(any_of(1, 2, 3, 3, 3, 4, 4)) if packed else 1
    if packed and "sequences" in extent:
        count = draw(large_count(extent))
    # Give one sequence all the work, or packing would make every sequence short.
    long = draw(st.integers(0, count - 1))
    shares = [WORK if n == long else WORK / count for n in range(count)]
    if count > 4:
        longest = edges[0] + 1 if _leaves_room(op, case, count) else 1
    each = [
        token_counts(edges, _affordable(op, case, share, longest), empty=packed) for share in shares
    ]
    tokens = tuple(draw(one) for one in each)
    keys: tuple[int, ...] | None = None
    if _has_keys_of_its_own(op, case):
        match draw(any_of(*_KEYS)):
            case "own":
                keys = tuple(draw(one) for one in each)
            case "equal":
                keys = tokens
            case "cached":
                keys, tokens = tokens, _decoded(draw, op, case, count)
    elif packed and draw(any_of(*[False] * 7, True)):
        tokens = _decoded(draw, op, case, count)
    case = replace(case, lengths=tokens, key_lengths=keys)
    return _perhaps_empty(draw, op, case)


def _decoded(draw: DrawFn, op: Op, case: Case, count: int) -> tuple[int, ...]:
    """Draw one token per sequence, perhaps with one more of one and none of another."""
    tokens = [1] * count
    two = _affordable(op, case, WORK, 2) == 2 and _leaves_room(op, case, count)
    if count > 1 and two and draw(any_of(True, True, True, False)):
        more, fewer = draw(st.permutations(range(count)))[:2]
        tokens[more] += 1
        tokens[fewer] -= 1
    return tuple(tokens)


def with_many_tokens(draw: DrawFn, op: Op, case: Case, extent: Extent, *, exact: bool) -> Case:
    """Draw one sequence of hundreds or thousands of tokens, alone or among short ones."""
    if case.packed:
        count = draw(MANY_OF_TWO if "sequences" in extent else st.integers(1, 4))
        case = replace(case, lengths=(1,) * count)
    share = MUCH_WORK / len(case.lengths)
    most = _affordable(op, case, share, MOST_TOKENS)
    if exact:
        # Exact cases run the recurrence once, without perturbed runs.
        most = max(most, min(MOST_TOKENS, int(share / math.prod(case.dims.values()))))
    many = st.integers(min(201, most), most)
    if edges := [n for n in _POWERS if n <= most]:
        many = st.one_of(st.sampled_from(edges), many)
    long = draw(st.integers(0, len(case.lengths) - 1))
    few = any_of(0, 1, 1, 2, 3, 5, 17)

    def among(most: int) -> tuple[int, ...]:
        each = [most if n == long else min(draw(few), most) for n in range(len(case.lengths))]
        return tuple(each)

    case = replace(case, lengths=among(draw(many)))
    if _has_keys_of_its_own(op, case) and draw(any_of(True, True, False)):
        # Few queries and many keys, or the reverse.
        short = draw(st.integers(1, 40))
        most = _affordable(op, case, share, MOST_TOKENS, short)
        edges = [n for n in _POWERS if 400 <= n <= most]
        many = st.integers(min(400, most), most)
        far = draw(st.one_of(st.sampled_from(edges), many) if edges else many)
        queries, keys = draw(st.sampled_from([(short, far), (short, far), (far, short)]))
        case = replace(case, lengths=among(queries), key_lengths=among(keys))
    return case


def past_a_long_tile(draw: DrawFn, op: Op, case: Case, tile: int) -> Case | None:
    """Draw one sequence past the end of a tile of so many tokens, with one of each dim.

    Returns:
        None if other cases pass it, or none can.
    """
    if tile <= _affordable(op, case, MUCH_WORK, max(tile, 200)):
        return None
    least = replace(case, packed=False, dims=dict.fromkeys(case.dims, 1))
    most = _affordable(op, least, _PAIRS_OF_A_TILE, 2 * tile + 1)
    if most <= tile:
        return None
    past = draw(st.one_of(any_of(tile + 1, most), st.integers(tile + 1, most)))
    return replace(least, lengths=(past,), key_lengths=None)


def _has_keys_of_its_own(op: Op, case: Case) -> bool:
    return op.own_keys and (not case.packed or len(op.packed_by) > 1)


def _perhaps_empty(draw: DrawFn, op: Op, case: Case) -> Case:
    """A case, now and then without rows, heads, tokens or keys."""
    empty = (
        ["tokens"] if case.packed else ["rows", "rows", "tokens"] + ["keys", "keys"] * op.own_keys
    )
    empty += ["heads"] * ("H" in op.dims)
    match draw(any_of(*[None] * 10, *empty)):
        case "heads":
            return case.with_dims(H=0)
        case "rows":
            return case.with_dims(B=0)
        case "tokens":
            return replace(case, lengths=(0,) * len(case.lengths))
        case "keys":
            return replace(case, key_lengths=(0,))
    return case


def _leaves_room(op: Op, case: Case, count: int) -> bool:
    """Whether so many sequences of one token leave work for one that is longer."""
    return count * work(op, replace(case, lengths=(1,), key_lengths=None)) <= MUCH_WORK - WORK


def _affordable(op: Op, case: Case, most: float, longest: int, others: int | None = None) -> int:
    """The most tokens of a sequence within this much work, at least 1.

    Args:
        others: the number of keys if `longest` is about queries, or the reverse; None for as many.
    """
    keys = None if others is None else (others,)

    def needed(tokens: int) -> float:
        return work(op, replace(case, lengths=(tokens,), key_lengths=keys))

    if needed(longest) <= most:
        return longest
    return bisect_right(range(2, longest + 1), most, key=needed) + 1
