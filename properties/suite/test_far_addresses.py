"""Addresses past 2^31 elements: every tensor of every op, with a huge stride along one dim.

The strides fit into 32 bits, but their products with an index do not: of a batch, a head, a token
in a tile, a tile of tokens, a page of a cache, or a packed sequence whose boundaries are int32. All
tensors of a call interleave in one of 4 GiB, like slices of a fused projection, and touch little of
it.
"""

import os
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Results
from properties.cases.sequences import dims_of, tensors_of
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.laws import Run, Subject
from properties.laws.expect import compare_with_oracle


class Way(NamedTuple):
    """The dims, by their letters, along which elements lie far apart, in about so many steps."""

    dims: str
    steps: int = 3


def _stride(steps: int) -> int:
    """By which the last step is past 2^31, if there are more than two."""
    return 2**31 // max(2, steps - 1) + 64


DTYPE = torch.bfloat16
_SIZES = {"B": 3, "H": 3, "G": 3, "R": 1, "K": 3, "V": 5, "D": 6, "P": 3}
_OTHER_SIZE = 4
# The longest tiles have 128 tokens.
_WAYS = {
    "batch": Way("B"),
    "tokens": Way("TS"),
    "tiles": Way("TS", 140),
    "heads": Way("HG"),
    "sequences": Way("TS"),
    "pages": Way("P"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    cases = {
        f"{op.name}-{mode.name}-{along}": (_case(op, mode.name, along), along)
        for op in OPS.values()
        for mode in op.modes
        for along, way in _WAYS.items()
        if (not option("oracles_op") or op.name in option("oracles_op"))
        and (not option("oracles_mode") or mode.name in option("oracles_mode"))
        and (along != "sequences" or op.packed_by)
        and any(set(way.dims) & {*a.dims.split()} for a in op.arguments if a.dims.count(" ") > 1)
    }
    metafunc.parametrize(("case", "along"), list(cases.values()), ids=list(cases))


def _case(op: Op, mode: str, along: str) -> Case:
    """A case with every tensor of the mode; packed sequences have one token each."""
    dims = {d: _SIZES.get(d, _OTHER_SIZE) for d in op.dims}
    if along == "tiles":
        dims |= {"B": 1} | {d: 1 for d in "HG" if d in dims}
    packed, count = along == "sequences", _WAYS[along].steps
    case = op.full(mode, dims, (1,) * count if packed else (count,), packed=packed)
    # By this seed, boundaries are int32.
    return replace(case, seed=1 << 8)


@pytest.fixture(scope="module")
def memory(subject: Subject) -> Tensor:
    size = 2**31 + 2**19
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if subject.device.type == "cpu" and here < 4 * size:
        pytest.skip("few pages are touched, but a machine of less than 8 GB may refuse the memory")
    return torch.empty(size, dtype=DTYPE, device=subject.device)


def _stretched(op: Op, tensors: Results, along: str, memory: Tensor, place: int) -> Results:
    """The tensors with a huge stride along the named dim, one after the other from `place`."""
    moved = {}
    way = _WAYS[along]
    for name, x in tensors.items():
        axis = next((n for n, d in enumerate(dims_of(op, name)) if d in way.dims), None)
        if axis is None or x.dim() < 3 or x.dtype != DTYPE:
            continue
        strides = list(x.select(axis, 0).contiguous().stride())
        strides.insert(axis, _stride(x.shape[axis]))
        moved[name] = memory.as_strided(x.shape, strides, place).copy_(x)
        # Further than the strides of tensors of different sizes drift apart.
        place += x.numel() // x.shape[axis] + 64 * x.shape[axis]
    return moved


def test_offsets_are_64_bits_wide(case: Case, along: str, subject: Subject, memory: Tensor) -> None:
    op = OPS[case.op]
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    far = _stretched(op, tensors_of(op, inputs), along, memory, 0)
    incoming = cotangents | _stretched(op, cotangents, along, memory, 2**18)
    assert far, "no tensor has this dim"
    got = subject.run(op, case, inputs.with_tensors(far), incoming)
    compare_with_oracle(Run("differential", op, case, subject), inputs, cotangents, got)
