"""A tile is chosen, or refused, by the wider of the head dims of keys and of values, and chosen by
how many states are carried."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import kernels
from kernels import tiles
from kernels.linear import tiles as linear
from kernels.tiles import TABLE, choose
from properties.case import Case
from properties.catalogue import OPS
from properties.tensors import build

_NARROW = {
    key: next(index for index, entry in enumerate(entries) if entry.max_dim < 256)
    for key, entries in TABLE.items()
    if {"K", "V"} <= set(OPS[key[0]].dims) and any(entry.max_dim < 256 for entry in entries)
}


@pytest.mark.parametrize(("op", "mode"), _NARROW, ids="-".join)
@pytest.mark.parametrize("wide", ["K", "V"])
def test_a_tile_that_is_too_narrow_is_refused(op: str, mode: str, wide: str) -> None:
    tile = _NARROW[op, mode]
    entry = TABLE[op, mode][tile]
    dtype = str(entry.dtypes[0]).removeprefix("torch.")
    call = _prepared(op, mode, dtype, {"B": 1, "K": 8, "V": 8, wide: entry.max_dim + 1})
    with pytest.raises(ValueError, match="tile"):
        call(tile=tile)


def _prepared(op: str, mode: str, dtype: str, dims: dict[str, int]) -> Callable[..., Any]:
    """A call of an op on two tokens, and dims of 2 where they are not given."""
    declared = OPS[op]
    sizes = {letter: dims.get(letter, 2) for letter in declared.dims}
    case = Case(op=op, mode=mode, dtype=dtype, dims=sizes, lengths=(2,))
    return partial(getattr(kernels, op), **build(declared, case).tensors, mode=mode)


_FEW = [
    (op, mode, index)
    for (op, mode), entries in TABLE.items()
    for index, entry in enumerate(entries)
    if entry.walks is not None
]


@pytest.mark.parametrize(("op", "mode", "index"), _FEW)
def test_a_tile_for_few_states_is_taken_where_there_are_few(op: str, mode: str, index: int) -> None:
    entry = TABLE[op, mode][index]

    def chosen(walks: int, tile: int | None = None) -> int:
        return choose(
            op,
            mode,
            dim=entry.max_dim,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            tile=tile,
            walks=walks,
        )

    assert entry.walks is not None
    assert chosen(entry.walks) == index
    assert chosen(entry.walks + 1) > index
    assert chosen(entry.walks + 1, index) == index


def test_states_of_ragged_sequences_count_half() -> None:
    assert linear.walks(3, 5, 128, None) == 15
    assert linear.walks(3, 5, 129, None) == 30
    assert linear.walks(3, 5, 128, torch.tensor([0, 1, 2, 3])) == 7


@pytest.mark.parametrize("op", ["gla", "kda"])
def test_an_op_counts_the_states_it_carries(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def note(*given: Any, walks: int, **options: Any) -> int:
        counted.append(walks)
        return choose(*given, walks=walks, **options)

    monkeypatch.setattr(tiles, "choose", note)
    _prepared(op, "chunk", "float32", {"B": 2, "G": 3, "H": 3, "R": 1, "V": 129})()
    assert counted == [12]
