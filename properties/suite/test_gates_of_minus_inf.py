"""A gate of -inf forgets all earlier tokens, like a very low gate, without NaN from 0 · inf."""

import math
from dataclasses import replace

import pytest
import torch

from properties.catalogue import OPS
from properties.catalogue.kinds import gates
from properties.catalogue.op import DTYPES
from properties.laws import Subject
from properties.targets.ours import MODES_WITH_KERNELS

GATES = [
    (name, mode, gate.name)
    for name, mode in MODES_WITH_KERNELS
    for gate in gates(OPS[name])
    if gate.name not in OPS[name].mode(mode).refuses
]
TOKENS, RESET = 7, 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "mode", "gate"), GATES)
def test_a_gate_of_minus_inf_equals_a_very_low_gate(
    name: str, mode: str, gate: str, dtype: str, subject: Subject
) -> None:
    op = OPS[name]
    case = op.full(mode, dict.fromkeys(op.dims, 1) | {"K": 16, "V": 16}, (TOKENS,), packed=False)
    case = replace(case, dtype=dtype)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)

    def with_gate(value: float) -> dict[str, torch.Tensor]:
        g = inputs.tensors[gate].clone()
        g[:, RESET] = value
        return subject.run(op, case, inputs.with_tensors({gate: g}), cotangents)

    low, minus_inf = with_gate(-1000.0), with_gate(-math.inf)
    # Attention's sums after a low gate have fewer digits, and a GPU's compiler may round them
    # otherwise.
    rounded = op.float32_logits and subject.device.type == "cuda"
    for result, x in minus_inf.items():
        assert x.isfinite().all(), result
        # The gradient of a bias takes gates as differences of their sums.
        if rounded or result == "dbias":
            torch.testing.assert_close(x, low[result])
        else:
            assert torch.equal(x, low[result]), result
