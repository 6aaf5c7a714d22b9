"""What is drawn: small, ragged cases around the edges of the tiles."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from properties.case import Case
from properties.catalogue.op import Mode, Op
from properties.layouts import LAYOUTS
from properties.targets import Target


def lengths(edge: int, longest: int, least: int) -> SearchStrategy[int]:
    """Token counts: a few, next to multiples of `edge`, or anything up to `longest`."""
    around = [edge - 1, edge, edge + 1, 2 * edge, 2 * edge + 1, 3 * edge - 1]
    edges = sorted({n for n in around if least <= n <= longest})
    few = st.integers(least, min(7, longest))
    some = st.integers(least, longest)
    return st.one_of(few, st.sampled_from(edges), some) if edges else st.one_of(few, some)


@st.composite
def cases(
    draw: DrawFn,
    op: Op,
    mode: Mode,
    dtype: str,
    target: Target,
    longest: int = 200,
    widest: int = 256,
) -> Case:
    """Cases of one op, mode and dtype that the op accepts.

    Args:
        target: whose tile table is drawn from.
        longest: tokens of a sequence, at most.
        widest: of any other dim, at most.
    """
    dims = {letter: min(draw(sizes), widest) for letter, sizes in op.dims.items()}
    case = Case(op=op.name, mode=mode.name, dtype=dtype, dims=dims, lengths=(1,))
    tiles = target.tiles(case)
    tile = draw(st.sampled_from([None, *tiles])) if tiles else None
    edge = tiles[tile if tile is not None else next(iter(tiles))] if tiles else 16
    case = _with_lengths(draw, op, replace(case, tile=tile), edge, longest)
    case = _with_options(draw, op, mode, case)
    case = replace(
        case,
        values=draw(st.sampled_from(op.recipes)),
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
        seed=draw(st.integers(0, 2**16)),
    )
    return op.settle(case)


def _with_lengths(draw: DrawFn, op: Op, case: Case, edge: int, longest: int) -> Case:
    packed = draw(st.booleans())
    least = 0 if packed else 1
    count = draw(st.integers(1, 4)) if packed else 1
    one = lengths(edge, longest, least)
    each = tuple(draw(one) for _ in range(count))
    keys: tuple[int, ...] | None = None
    if op.keys and draw(st.booleans()):
        keys = tuple(draw(one) for _ in range(count))
    dims = {**case.dims, "B": 1} if packed else case.dims
    return replace(case, packed=packed, lengths=each, key_lengths=keys, dims=dims)


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


def modes(op: Op, only: Sequence[str] = ()) -> list[Mode]:
    """The modes of an op, or those of them that are named."""
    return [mode for mode in op.modes if not only or mode.name in only]
