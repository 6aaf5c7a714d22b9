"""float32 inputs are multiplied in float32, not in a GPU's default precision."""

from dataclasses import replace

import pytest
import torch

import properties.simulator as simulator
from properties.catalogue import OPS
from properties.laws import Subject
from properties.targets.ours import MODES_WITH_KERNELS

_SIZES = {"B": 1, "G": 1, "R": 2, "K": 20, "V": 20, "P": 8}


@pytest.mark.parametrize(("name", "mode"), MODES_WITH_KERNELS)
def test_no_product_is_rounded_to_tf32(name: str, mode: str, subject: Subject) -> None:
    if subject.device.type != "cpu":
        pytest.skip("only the simulator can be told what the default is")
    op = OPS[name]
    case = op.full(mode, {d: _SIZES.get(d, 2) for d in op.dims}, (70,), packed=False)
    case = replace(case, dtype="float32")
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    with simulator.simulating(tf32=True):
        rounded = subject.run(op, case, inputs, cotangents)
    for result, x in subject.run(op, case, inputs, cotangents).items():
        assert torch.equal(rounded[result], x), result
