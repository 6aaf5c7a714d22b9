"""What is drawn: small, ragged cases around the edges of the tiles."""

from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from properties.case import Case
from properties.catalogue.op import Mode, Op
from properties.layouts import LAYOUTS
from properties.targets import Target
from properties.tensors import work

# Numbers that the oracle's forms may hold at once. The float64 oracle and its twelve disturbed runs
# for the budgets then take a second or so at most on one core, and a quarter on average; kernels of
# this size take less on the simulator. Wide heads, long sequences and many heads are all drawn, but
# not all at once: what a kernel does with one of them it does per head and per tile.
WORK = 300_000


# Made once for the same arguments: to make and check a strategy takes longer than to draw from it.
@lru_cache(maxsize=2048)
def lengths(edge: int, longest: int, *, empty: bool) -> SearchStrategy[int]:
    """Token counts: a few, next to multiples of `edge`, anything up to `longest`, or none."""
    few = st.sampled_from([n for n in (1, 1, 2, 3, 5, 7) if n <= longest])
    around = [edge - 1, edge, edge + 1, 2 * edge, 2 * edge + 1, 3 * edge - 1]
    edges = sorted({n for n in around if 1 <= n <= longest})
    counts = [few, st.sampled_from(edges), st.sampled_from(edges)] if edges else [few]
    counts.append(st.integers(1, longest))
    return st.one_of(*counts, st.just(0), st.just(0)) if empty else st.one_of(*counts)


def cases(
    op: Op, mode: Mode, dtype: str, target: Target, longest: int = 200, widest: int = 256
) -> SearchStrategy[Case]:
    """Cases of one op, mode and dtype that the op accepts.

    Args:
        target: whose tile table is drawn from.
        longest: tokens of a sequence, at most, or those of a tile and a few more; fewer where the
            other dims are large, see `WORK`.
        widest: of any other dim, at most.
    """
    # From the eleventh case of a run on, Hypothesis varies each five times by copying one part of
    # it over another of the same kind: K = V, equal lengths, T = 1. That is what a case should not
    # be, and it leaves few that are new. Elements of a unique collection are not copied over.
    one = st.lists(
        _cases(op, mode, dtype, target, longest, widest), min_size=1, max_size=1, unique=True
    )
    return one.map(itemgetter(0))


@st.composite
def _cases(
    draw: DrawFn, op: Op, mode: Mode, dtype: str, target: Target, longest: int, widest: int
) -> Case:
    # Small heads leave work for sequences of several tiles, and most tiles are for small heads.
    widest = min(widest, draw(st.sampled_from([256, 256, 64, 64, 40])))
    dims = {letter: _folded(draw(size), widest) for letter, size in op.dims.items()}
    case = Case(op=op.name, mode=mode.name, dtype=dtype, dims=dims, lengths=(1,))
    tiles = target.tiles(case)
    # A tile that is for small heads alone is drawn twice as often as others where it can be.
    for_all = target.tiles(replace(case, dims=dict.fromkeys(dims, 256)))
    small = [index for index in tiles if index not in for_all]
    tile = draw(st.sampled_from([None, *tiles, *small])) if tiles else None
    if tiles:
        edge = tiles[tile if tile is not None else next(iter(tiles))]
    else:
        edge = target.tokens(op.name, mode.name)
        # Sequences reach past a tile that the target says it has.
        longest = longest if edge == 16 else max(longest, edge + 16)
    case = _with_lengths(draw, op, replace(case, tile=tile), edge, longest)
    case = _with_options(draw, op, mode, case)
    case = replace(
        case,
        values=draw(st.sampled_from(op.recipes)),
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
        seed=draw(st.integers(0, 2**16)),
    )
    return op.settle(case)


def _folded(size: int, largest: int) -> int:
    """A size from 1 to `largest`, or 0; folding keeps sizes different where a clamp would not."""
    return (size - 1) % largest + 1 if size > largest else size


def _with_lengths(draw: DrawFn, op: Op, case: Case, edge: int, longest: int) -> Case:
    packed = bool(op.packed_by) and draw(st.booleans())
    count = draw(st.sampled_from([1, 2, 3, 3, 3, 4])) if packed else 1
    dims = {**case.dims, "B": 1} if packed else case.dims
    case = replace(case, packed=packed, dims=dims)
    # One sequence may take all the work, so that packing does not make all of them short.
    long = draw(st.integers(0, count - 1))
    shares = [WORK if n == long else WORK / count for n in range(count)]
    each = [lengths(edge, _affordable(op, case, share, longest), empty=packed) for share in shares]
    tokens = tuple(draw(one) for one in each)
    keys: tuple[int, ...] | None = None
    if op.keys and (not packed or len(op.packed_by) > 1) and draw(st.booleans()):
        keys = tuple(draw(one) for one in each)
    case = replace(case, lengths=tokens, key_lengths=keys)
    return case if packed else _perhaps_empty(draw, op, case)


def _perhaps_empty(draw: DrawFn, op: Op, case: Case) -> Case:
    """A dense case, now and then without rows, without tokens, or without keys."""
    match draw(st.sampled_from([*[None] * 4, "rows", "tokens", "keys"])):
        case "rows":
            return replace(case, dims={**case.dims, "B": 0})
        case "tokens":
            return replace(case, lengths=(0,))
        case "keys" if op.keys:
            return replace(case, key_lengths=(0,))
    return case


def _affordable(op: Op, case: Case, most: float, longest: int) -> int:
    """The most tokens that a sequence may have for this much work; 1 is always allowed."""

    def needed(tokens: int) -> float:
        return work(op, replace(case, lengths=(tokens,)))

    return bisect_right(range(2, longest + 1), most, key=needed) + 1


def _with_options(draw: DrawFn, op: Op, mode: Mode, case: Case) -> Case:
    allowed = [a for a in op.arguments if a.name not in mode.refuses]
    given = tuple(a.name for a in allowed if a.optional and draw(st.booleans()))
    present = [a for a in allowed if not a.optional or a.name in given]
    float32 = tuple(a.name for a in present if a.dtype == "either" and draw(st.booleans()))
    options: dict[str, Any] = {}
    for option in op.options:
        if option.name not in mode.refuses:
            options[option.name] = draw(option.draw(case))
    return replace(case, given=given, float32=float32, options=options)
