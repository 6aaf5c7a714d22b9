"""A picture of a failed comparison: which elements are wrong, tokens across."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.counted import counted
from properties.verdict.compare import Comparison
from properties.verdict.report import NAMES

# A cell has the largest level of its elements.
LEVELS = (
    "right",
    "wrong, by at most 10 times the budget",
    "by at most 1000 times",
    "by more, or where no error is allowed",
    "NaN or infinite",
)
_COLUMNS, _ROWS, _STRIPS = 96, 16, 12


@dataclass(frozen=True)
class Strip:
    """One strip of a picture, such as a head of a sequence.

    Args:
        rows: rows of cells, each cell the digit of its level.
    """

    title: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """Where a result is wrong.

    Args:
        output: name of the result.
        across, down: what the columns and rows of a strip are, and how many: "64 tokens".
        cuts: where packed sequences end, as fractions of the width.
        strips: those with wrong elements first, if there are too many.
        more: how many strips are left out.
    """

    output: str
    across: str
    down: str
    cuts: tuple[float, ...]
    strips: tuple[Strip, ...]
    more: int


def picture(comparison: Comparison, case: Case, dims: Sequence[str]) -> Picture | None:
    """The picture of a result.

    Args:
        dims: the letter of each dim of the result.

    Returns:
        None if no element can be compared, or none is wrong.
    """
    if not comparison.wrong.any() or comparison.got.shape != comparison.want.shape:
        return None
    levels = _levels(comparison)
    if not levels.ndim:
        levels, dims = levels[None], ("",)
    axes = range(len(dims))
    across = next((axis for axis in axes if dims[axis] in ("T", "S")), axes[-1])
    down = next((axis for axis in reversed(axes) if axis != across), None)
    apart = [axis for axis in axes if axis not in (across, down)]
    if down is None:
        ordered = levels.permute(*apart, across).unsqueeze(-2)
    else:
        ordered = levels.permute(*apart, down, across)
    found = []
    for index in product(*(range(levels.shape[axis]) for axis in apart)):
        words = (
            f"{NAMES.get(dims[axis], dims[axis])} {i}"
            for axis, i in zip(apart, index, strict=True)
            if not (case.packed and dims[axis] == "B")
        )
        cells = _shrunk(_shrunk(ordered[index], 0, _ROWS), 1, _COLUMNS)
        found.append(Strip(", ".join(words), tuple("".join(map(str, r)) for r in cells.tolist())))
    interesting = [strip for strip in found if set("".join(strip.rows)) - {"0"}]
    shown = found if len(found) <= _STRIPS else interesting[:_STRIPS]
    return Picture(
        comparison.name,
        _counted(dims, levels, across),
        "" if down is None else _counted(dims, levels, down),
        _cuts(case, dims[across]),
        tuple(shown),
        len(found) - len(shown),
    )


def _levels(c: Comparison) -> Tensor:
    times = (c.got.double() - c.want).abs() / c.allowed
    size = 1 + (times > 10).int() + (times > 1000).int()
    return torch.where(c.wrong, torch.where(c.got.isfinite(), size, 4), 0)


def _shrunk(cells: Tensor, axis: int, most: int) -> Tensor:
    """Reduce an axis to at most this many cells, each the largest of those it stands for."""
    size = cells.shape[axis]
    if size <= most:
        return cells
    place = torch.arange(size) * most // size
    place = place.view(-1, 1) if axis == 0 else place
    shape = list(cells.shape)
    shape[axis] = most
    return cells.new_zeros(shape).scatter_reduce(axis, place.expand_as(cells), cells, "amax")


def _counted(dims: Sequence[str], levels: Tensor, axis: int) -> str:
    name, size = NAMES.get(dims[axis], dims[axis]) or "element", levels.shape[axis]
    return counted(size, name)


def _cuts(case: Case, letter: str) -> tuple[float, ...]:
    lengths = (case.key_lengths or case.lengths) if letter == "S" else case.lengths
    if not case.packed or letter not in ("T", "S"):
        return ()
    return tuple(end / sum(lengths) for end in list(accumulate(lengths))[:-1])
