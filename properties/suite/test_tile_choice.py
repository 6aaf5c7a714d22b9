"""A tile is chosen, or rejected, by the larger head dim of keys and values, and chosen by the
number of states.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import kernels
from kernels import tiles
from kernels.arguments import FLOATS
from kernels.tiles import TABLE, choose
from properties.architectures import ARCHITECTURES
from properties.cases.case import Case
from properties.cases.tensors import build
from properties.catalogue import OPS
from properties.catalogue.kinds import carries_states
from properties.device import as_architecture
from properties.laws import Subject
from properties.targets import ours
from properties.targets.ours import MODES_WITH_KERNELS

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
    """A call of an op on two tokens, with dims of 2 unless given."""
    declared = OPS[op]
    sizes = {letter: dims.get(letter, 2) for letter in declared.dims}
    case = Case(op=op, mode=mode, dtype=dtype, dims=sizes, lengths=(2,))
    return partial(getattr(kernels, op), **build(declared, case).tensors, mode=mode)


@pytest.mark.parametrize(("op", "mode"), MODES_WITH_KERNELS)
def test_a_call_takes_the_first_tile_of_the_claimed_architecture(
    op: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ours.target(torch.device("cpu"))
    subject = Subject(target, torch.device("cpu"))
    chosen = []

    def note(*given: Any, **options: Any) -> int:
        chosen.append(choose(*given, **options))
        return chosen[-1]

    monkeypatch.setattr(tiles, "choose", note)
    dims = dict.fromkeys(OPS[op].dims, 2)
    case = OPS[op].full(mode, dims, (3,), packed=False)
    for architecture in (None, *ARCHITECTURES):
        claimed = replace(case, dtype="bfloat16", architecture=architecture)
        inputs = subject.inputs(OPS[op], claimed)
        subject.run(OPS[op], claimed, inputs, subject.cotangents(OPS[op], claimed))
        assert set(chosen) == {next(iter(target.tiles(claimed)))}, architecture
        chosen.clear()


def test_other_programs_run_on_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(ours.target(torch.device("cpu")), torch.device("cpu"))
    op = OPS["attention"]
    case = op.full("parallel", dict.fromkeys(op.dims, 2), (65,), packed=False)
    # Masks and biases have a tile for all.
    case = replace(case, given=tuple(n for n in case.given if n not in ("bias", "mask")))
    run = JITFunction.run
    launched: list[str] = []

    def note(kernel: Any, *given: Any, **constants: Any) -> Any:
        launched.append(f"{kernel.fn.__name__} {constants}")
        return run(kernel, *given, **constants)

    monkeypatch.setattr(JITFunction, "run", note)
    programs = []
    for architecture in (None, "sm_80", "gfx942", "sm_90"):
        claimed = replace(case, architecture=architecture)
        launched.clear()
        subject.run(op, claimed, subject.inputs(op, claimed), subject.cotangents(op, claimed))
        programs.append(tuple(launched))
    assert len(set(programs)) == 3
    assert programs[0] == programs[3]


def test_a_claim_ends_with_its_block_and_is_not_made_of_a_gpu() -> None:
    here = torch.device("cpu")
    seen = []

    def fail_there() -> None:
        with as_architecture("sm_80", here), as_architecture(None, here):
            seen.append(tiles.architecture(here))
            raise KeyError

    with pytest.raises(KeyError):
        fail_there()
    assert [*seen, tiles.architecture(here)] == [80, 90]
    for name, where in (("sm_80", "cuda"), ("sm_1", "cpu")):
        with (
            pytest.raises(ValueError, match="architecture"),
            as_architecture(name, torch.device(where)),
        ):
            pass


_FEW = [
    (op, mode, index)
    for (op, mode), entries in TABLE.items()
    for index, entry in enumerate(entries)
    if entry.max_states is not None
]


@pytest.mark.parametrize(("op", "mode", "index"), _FEW)
def test_a_tile_for_few_states_is_chosen_for_few_states(op: str, mode: str, index: int) -> None:
    entry = TABLE[op, mode][index]

    def chosen(states: int, tile: int | None = None) -> int:
        return choose(
            op,
            mode,
            dim=entry.max_dim,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            tile=tile,
            states=states,
        )

    assert entry.max_states is not None
    assert chosen(entry.max_states) == index
    assert chosen(entry.max_states + 1) > index
    assert chosen(entry.max_states + 1, index) == index


def test_states_of_ragged_sequences_count_half() -> None:
    assert tiles.count_states(3, 5, 128, None) == 15
    assert tiles.count_states(3, 5, 129, None) == 30
    assert tiles.count_states(3, 5, 128, torch.tensor([0, 1, 2, 3])) == 7


@pytest.mark.parametrize(
    "op", [op.name for op in OPS.values() if op.modes and op.wraps is None and carries_states(op)]
)
def test_an_op_counts_the_states_it_carries(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def note(*given: Any, states: int, **options: Any) -> int:
        counted.append(states)
        return choose(*given, states=states, **options)

    monkeypatch.setattr(tiles, "choose", note)
    _prepared(op, "chunk", "float32", {"B": 2, "G": 3, "H": 3, "R": 1, "V": 129})()
    assert counted == [12]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_tile_that_does_not_admit_the_call_is_refused(dtype: torch.dtype) -> None:
    for (op, mode), entries in tiles.TABLE.items():
        for index, entry in enumerate(entries):
            for dim in (1, entry.max_dim, entry.max_dim + 1):
                call = partial(
                    tiles.choose, op, mode, dim=dim, dtype=dtype, device=torch.device("cpu"),
                    tile=index,
                )  # fmt: skip
                if entry.admits(dim, dtype, tiles.SIMULATED):
                    assert call() == index
                else:
                    with pytest.raises(ValueError, match="tile"):
                        call()
