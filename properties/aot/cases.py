"""Cases of the catalogue that launch every kernel with every tile, to record the launches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from hypothesis import find, settings

import kernels
from kernels.arguments import FLOATS
from kernels.cache import ContiguousCache, SlidingWindowCache
from kernels.tiles import TABLE, Entry
from properties.architectures import ARCHITECTURES, Architecture
from properties.cases.calls import outputs_and_gradients
from properties.cases.case import Case
from properties.cases.layouts import LAYOUTS
from properties.cases.tensors import build, build_cotangents
from properties.catalogue import OPS
from properties.catalogue.op import Mode, Op, Option, Role

_HEAD_DIMS = ("K", "V", "D")


@dataclass(frozen=True)
class Compilation:
    """One op, mode and dtype on one architecture."""

    op: str
    mode: str
    dtype: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.op}-{self.mode}-{self.dtype}-{self.architecture}"

    def runs(self, architecture: Architecture, thorough: bool) -> Iterator[Callable[[], object]]:
        """Calls that together launch every kernel of the mode, the small case last.

        They use each tile-table entry that is the default of some head dim; in bfloat16 on sm_90
        also entries that are no default on any architecture.

        Args:
            thorough: use every entry everywhere, each option alone, each layout, and more head
                dims.
        """
        if self.op in OPS:
            op = OPS[self.op]
            mode = op.mode(self.mode)
            for case in _cases(op, mode, self.dtype, architecture.capability, thorough):
                yield partial(_forward_and_backward, op, case)
        else:
            dims = ((8, 24), (256, 128)) if not thorough else ((8, 24), (64, 64), (256, 128))
            for key_dim, value_dim in dims:
                yield partial(
                    _update, CACHES[self.mode], getattr(torch, self.dtype), key_dim, value_dim
                )


CACHES: dict[str, Callable[..., Any]] = {
    "contiguous": ContiguousCache,
    "sliding": SlidingWindowCache,
}


def families() -> list[tuple[str, str]]:
    """Every (op, mode) that has kernels of its own; a wrapper runs those of another op."""
    ops = [(op.name, mode.name) for op in OPS.values() for mode in op.modes]
    return [family for family in ops if family in TABLE] + [("cache", mode) for mode in CACHES]


def _update(cache: Callable[..., Any], dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    k = torch.zeros(2, 16, 2, key_dim, dtype=dtype)
    v = torch.zeros(2, 16, 2, value_dim, dtype=dtype)
    cache(2, 64, 2, key_dim, value_dim, dtype=dtype).update(k, v)


def _forward_and_backward(op: Op, case: Case) -> None:
    function = getattr(kernels, op.name)
    outputs_and_gradients(
        op, function, build(op, case), build_cotangents(op, case), mode=case.mode, tile=case.tile
    )


def _cases(op: Op, mode: Mode, dtype: str, capability: int, thorough: bool) -> Iterator[Case]:
    """Cases, the most demanding for a compiler first.

    For each tile: the largest head dims that it admits, with all tensors and options, aligned as in
    real models so that loads are wide and pipelined. That is the most shared memory and registers.
    If kernels with gates or a bias have their own tile, also without these. And once the opposite:
    no options, head dims below the 16 that `tl.dot` needs, ragged lengths.
    """
    tiles = _tiles(op, mode, dtype, capability, thorough)
    seen = set()
    for case in _wanted(op, mode, dtype, tiles, thorough):
        if case not in seen:
            seen.add(case)
            yield op.settle(case)


def _tiles(op: Op, mode: Mode, dtype: str, capability: int, thorough: bool) -> dict[int, Entry]:
    """The tile-table entries by index: all that are admitted, or as `Compilation.runs` says."""
    entries, of = TABLE[op.name, mode.name], getattr(torch, dtype)
    admitted = {index for index, entry in enumerate(entries) if entry.admits(1, of, capability)}
    found = admitted if thorough else _defaults(entries, of, capability)
    if dtype == "bfloat16" and capability == 90:
        known = product(FLOATS, ARCHITECTURES.values())
        anywhere = (_defaults(entries, each, arch.capability) for each, arch in known)
        found = found | admitted.difference(*anywhere)
    return {index: entries[index] for index in sorted(found)}


def _defaults(entries: Sequence[Entry], dtype: torch.dtype, capability: int) -> set[int]:
    """The entries that are the first to admit some head dim."""
    found: set[int] = set()
    for dim in range(1, max((entry.max_dim for entry in entries), default=0) + 1):
        admitting = (i for i, e in enumerate(entries) if e.admits(dim, dtype, capability))
        found.update(islice(admitting, 1))
    return found


def _wanted(
    op: Op, mode: Mode, dtype: str, tiles: dict[int, Entry], thorough: bool
) -> Iterator[Case]:
    for index, tile in tiles.items():
        largest = replace(_bare(op, mode, dtype, tile.max_dim), tile=index)
        loaded = _loaded(op, mode, largest)
        yield loaded
        if "gated" in tile.kernels:
            yield _ungated(op, loaded)
        if "biased" in tile.kernels:
            yield replace(loaded, given=()).with_options(softcap=None)
        if thorough:
            for dim in (16, 32, 64, 128, tile.max_dim):
                if dim <= tile.max_dim:
                    case = replace(_bare(op, mode, dtype, dim), tile=index)
                    yield case
                    yield _loaded(op, mode, case)
    small = _bare(op, mode, dtype, 8, ragged=True)
    yield small
    if not thorough:
        return
    middle = _bare(op, mode, dtype, 64)
    for option in _options(op, mode):
        yield middle.with_options(**{option.name: _switched(option, middle)})
    for argument in op.arguments:
        if argument.optional and argument.name not in mode.refuses:
            yield replace(middle, given=(argument.name,))
            yield replace(middle, given=(argument.name,), float32=(argument.name,))
    yield _packed(middle)
    for layout in LAYOUTS:
        for case in (small, _loaded(op, mode, middle)):
            yield replace(case, layout=layout)


def _bare(op: Op, mode: Mode, dtype: str, dim: int, ragged: bool = False) -> Case:
    """A case with required arguments only.

    Sizes of 1 are avoided, because Triton makes constants of them.
    """
    dims = dict.fromkeys(op.dims, 2)
    dims |= {
        letter: min(dim, op.widest.get(letter, dim)) for letter in _HEAD_DIMS if letter in dims
    }
    if ragged and "V" in dims:
        dims["V"] = 3 * dim
    if "P" in dims:
        dims["P"] = dim // 2 - ragged
    return Case(
        op=op.name,
        mode=mode.name,
        dtype=dtype,
        dims=dims,
        lengths=(37 if ragged else 128,),
        options={option.name: option.default for option in _options(op, mode)},
        values="zeros",
    )


def _loaded(op: Op, mode: Mode, case: Case) -> Case:
    case = _packed(case)
    allowed = [a for a in op.arguments if a.name not in mode.refuses]
    return replace(
        case,
        given=tuple(a.name for a in allowed if a.optional),
        options={option.name: _switched(option, case) for option in _options(op, mode)},
    )


def _ungated(op: Op, case: Case) -> Case:
    gates = [a.name for a in op.arguments if a.role is Role.LOG_DECAY]
    return replace(case, given=tuple(name for name in case.given if name not in gates))


def _packed(case: Case) -> Case:
    return replace(case, lengths=case.lengths * 2, packed=True).with_dims(B=1)


def _options(op: Op, mode: Mode) -> list[Option]:
    return [option for option in op.options if option.name not in mode.refuses]


def _switched(option: Option, case: Case) -> Any:
    return find(
        option.draw(case),
        lambda value: value != option.default,
        settings=settings(database=None, derandomize=True),
    )
