"""Strides that no law draws: inputs with the last two dims exchanged, as from a transposed product;
one input alone; and boundaries that are a slice.

A layout in the laws would not do: how PyTorch accumulates a cotangent depends on its strides.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.layouts import heads_first
from properties.catalogue import OPS
from properties.laws import Run, Subject
from properties.laws.expect import expect_same
from properties.targets.ours import MODES_WITH_KERNELS

PACKED = [(op, mode) for op, mode in MODES_WITH_KERNELS if OPS[op].packed_by]
_SIZES = {
    "B": 2,
    "H": 3,
    "G": 1,
    "R": 3,
    "K": 16,
    "V": 16,
    "L": 3,
    "D": 16,
    "W": 4,
    "P": 3,
    "A": 2,
    "C": 4,
    "M": 3,
}


@pytest.mark.parametrize(("name", "mode"), MODES_WITH_KERNELS)
def test_the_layout_of_rows_changes_nothing(name: str, mode: str, subject: Subject) -> None:
    op, case = OPS[name], _case(name, mode, (5,))
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, cotangents)
    turned = inputs.with_tensors({n: _transposed(x) for n, x in inputs.tensors.items()})
    incoming = {n: _transposed(x) for n, x in cotangents.items()}
    for given, of in ((turned, cotangents), (inputs, incoming)):
        got = subject.run(op, case, given, of)
        about = Run("layout_invariance", op, case, subject), inputs, cotangents
        expect_same(*about, got, want, "contiguous inputs, where their last two dims are exchanged")


@pytest.mark.parametrize(
    ("name", "mode", "packed"),
    [
        (*each, packed)
        for each in MODES_WITH_KERNELS
        for packed in (False, True)
        if each in PACKED or not packed
    ],
)
def test_strides_of_one_do_not_stand_for_those_of_another(
    name: str, mode: str, packed: bool, subject: Subject
) -> None:
    """Heads before tokens, one tensor at a time."""
    op, case = OPS[name], _case(name, mode, (2, 3) if packed else (5,), packed=packed)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, cotangents)
    about = Run("layout_invariance", op, case, subject), inputs, cotangents
    for each, x in inputs.tensors.items():
        got = subject.run(op, case, inputs.with_tensors({each: heads_first(x)}), cotangents)
        expect_same(*about, got, want, f"contiguous inputs, where {each} has heads first")
    for each, x in cotangents.items():
        got = subject.run(op, case, inputs, {**cotangents, each: heads_first(x)})
        expect_same(*about, got, want, f"contiguous inputs, where d{each} has heads first")


@pytest.mark.parametrize(("name", "mode"), PACKED)
def test_the_layout_of_boundaries_changes_nothing(name: str, mode: str, subject: Subject) -> None:
    op, case = OPS[name], _case(name, mode, (2, 3), packed=True)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, cotangents)
    bounds = torch.tensor([0, 4, 2, 1, 5], device=subject.device)
    sliced = inputs.with_tensors({n: bounds[::2] for n in op.packed_by if n in inputs.tensors})
    for result, x in subject.run(op, case, sliced, cotangents).items():
        assert torch.equal(x, want[result]), result


def _case(name: str, mode: str, lengths: tuple[int, ...], *, packed: bool = False) -> Case:
    op = OPS[name]
    case = op.full(mode, {d: _SIZES[d] for d in op.dims}, lengths, packed=packed)
    return replace(case, dtype="float32")


def _transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x
