"""Contiguous tensors with more than 2^31 elements, on a GPU with enough memory.

The inputs repeat a few sequences. Each copy must equal a small case bit for bit, wherever it is in
memory. The period is no power of two, so that an offset that wraps hits another sequence.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.sequences import join, separate, summed_gradients, tensors_of
from properties.cases.tensors import boundaries
from properties.catalogue import OPS
from properties.catalogue.kinds import groups_heads, is_delta
from properties.catalogue.op import Op, Role
from properties.laws import Subject

ELEMENTS = 2**31
MEMORY = 128 * 2**30
SEQUENCES, TOKENS = 3, 130
_SIZES = {"H": 8, "G": 4, "R": 2, "K": 64, "V": 64, "D": 64, "P": 32}
_OTHER_SIZE = 4
# Ops that exceed one GPU's memory at the usual sizes. A recurrent form keeps K x V states for every
# few tokens. Gated delta rules keep everything per value head, of which two would share a key head.
# DPLR has five tensors as wide as keys, and their gradients: those stay below 2^31, and only
# tensors as wide as values exceed it.
_NARROW = {"H": 32, "G": 32, "R": 1, "K": 16, "V": 16}
_UNGROUPED = {"G": 8, "R": 1}
_WIDE_VALUES = {"K": 16, "V": 128}
# An op on single vectors counts those: 2^31 of two numbers each.
_VECTORS = {"H": 1024, "D": 2, "P": 1}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    cases = {
        f"{op.name}-{mode.name}-{what}": _case(op, mode.name, what)
        for op in OPS.values()
        for mode in op.modes
        for what in ("dense", "packed", "vectors")
        if (not option("oracles_op") or op.name in option("oracles_op"))
        and (not option("oracles_mode") or mode.name in option("oracles_mode"))
        and (what != "packed" or op.packed_by)
        and (what != "vectors" or {"H", "D"} <= set(op.dims))
    }
    metafunc.parametrize("case", list(cases.values()), ids=list(cases))


def _case(op: Op, mode: str, what: str) -> Case:
    packed = what == "packed"
    known = {**_SIZES, **(_VECTORS if what == "vectors" else _less(op, mode))}
    dims = {d: known.get(d, _OTHER_SIZE) for d in op.dims} | {"B": SEQUENCES}
    lengths = tuple(TOKENS - 9 * n for n in range(SEQUENCES)) if packed else (TOKENS,)
    return op.full(mode, dims, lengths, packed=packed)


def _less(op: Op, mode: str) -> dict[str, int]:
    """Sizes in the place of others that do not fit."""
    if mode == "fused_recurrent":
        return _NARROW
    if _has_many_keys(op):
        return _WIDE_VALUES
    return _UNGROUPED if is_delta(op) and groups_heads(op) else {}


def _large(op: Op, mode: str) -> str:
    """The tensor that is so large: the first, but attention has fewer heads of keys."""
    role = op.arguments[0].role
    if op.own_keys:
        role = Role.KEY
    elif _has_many_keys(op) and mode == "chunk":
        role = Role.VALUE
    return next(x.name for x in op.arguments if x.role is role)


def _has_many_keys(op: Op) -> bool:
    return sum(x.dims == "B T H K" for x in op.arguments) >= 5


def _over_and_over(op: Op, case: Case, tensors: Results, times: int) -> Results:
    return join(op, case, separate(op, case, tensors) * times)


def _repeated(op: Op, case: Case, inputs: Inputs, times: int, device: torch.device) -> Inputs:
    tensors = {**inputs.tensors, **_over_and_over(op, case, tensors_of(op, inputs), times)}
    if case.packed:
        bounds = torch.tensor(boundaries(case.lengths * times), device=device)
        tensors |= {name: bounds for name in op.packed_by if name in tensors}
    return replace(inputs, tensors=tensors)


def _differing(got: Tensor, want: Tensor) -> str:
    """The place in memory of the first differing element."""
    first = int((got != want).flatten().int().argmax())
    return f"element {first} of {got.numel()}"


def test_sequences_are_computed_alike_wherever_they_lie(
    case: Case, subject: Subject, gpu: torch.device
) -> None:
    if torch.cuda.get_device_properties(gpu).total_memory < MEMORY:
        pytest.skip("wants a GPU with 128 GiB")
    op = OPS[case.op]
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, cotangents)
    large = inputs.tensors[_large(op, case.mode)]
    counted = large[..., 0] if case.dims.get("D") == _VECTORS["D"] else large
    times = 1 + ELEMENTS // counted.numel()
    dims = case.dims if case.packed else {**case.dims, "B": case.dims["B"] * times}
    lengths = case.lengths * times if case.packed else case.lengths
    many = replace(case, dims=dims, lengths=lengths)
    incoming = _over_and_over(op, case, cotangents, times)
    got = subject.run(op, many, _repeated(op, case, inputs, times, gpu), incoming)
    # The gradient of a shared argument sums over sequences.
    for name in want.keys() - summed_gradients(op, case):
        same = _over_and_over(op, case, {name: want[name]}, times)[name]
        assert torch.equal(got[name], same), f"{name}: {_differing(got[name], same)}"
        del same, got[name]
