"""Offsets of 32 bits in every kernel, seen on small tensors: the simulator gives them fewer bits.

What a program computes of the place of its sequence, chunk or token has to be of 64 bits, or passes
2^31 on a tensor of gigabytes, also where it is contiguous. What lies within a tile fits.
"""

import pytest
import torch

import properties.simulator as simulator
from kernels.tiles import TABLE
from properties.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.laws import Subject

# Within 128 rows of 6 heads of 5 channels or of 40 features, or 32 states of 16 x 16, an offset is
# below 2^13; gates alone, one a head, have more elements.
BITS = 14
TOKENS, SEQUENCES = 1500, 150
_SIZES = {"H": 6, "G": 3, "R": 1, "K": 3, "V": 5, "D": 40, "P": 3}
_OTHER_SIZE = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    cases = {
        f"{op.name}-{mode.name}-{many}": _case(op, mode.name, many)
        for op in OPS.values()
        for mode in op.modes
        for many in ("tokens", "batch", "sequences")
        # A reading runs the kernels of another op.
        if (op.name, mode.name) in TABLE
        and (not option("op") or op.name in option("op"))
        and (not option("mode") or mode.name in option("mode"))
        and (many != "sequences" or op.packed_by)
    }
    metafunc.parametrize("case", list(cases.values()), ids=list(cases))


def _case(op: Op, mode: str, many: str) -> Case:
    """With every tensor that the mode takes."""
    batch = SEQUENCES if many == "batch" else 1
    dims = {d: _SIZES.get(d, _OTHER_SIZE) for d in op.dims} | {"B": batch}
    lengths = {"tokens": (TOKENS,), "batch": (11,), "sequences": (11,) * SEQUENCES}[many]
    return op.full(mode, dims, lengths, packed=many == "sequences")


def test_what_grows_with_a_tensor_is_64_bits_wide(case: Case, subject: Subject) -> None:
    if subject.device.type != "cpu":
        pytest.skip("seen by the simulator")
    op = OPS[case.op]
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    # Boundaries and places too: a kernel has to widen what it reads of them.
    tables = {n: x.int() for n, x in inputs.tensors.items() if x.dtype == torch.int64}
    inputs = inputs.with_tensors(tables)
    with simulator.simulating(index_bits=BITS):
        subject.run(op, case, inputs, gradients_of)
