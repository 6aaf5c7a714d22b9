"""Each tensor that is trained gets a gradient from our kernels, of zeros where outputs do not
depend on it. Without one an optimizer leaves it out, and distributed training waits for it.

Laws take no gradient for zeros, as other libraries may return none.
"""

from dataclasses import replace

import pytest
import torch

import kernels
from properties.catalogue import OPS
from properties.laws import Subject

TRAINED = [
    op.name for op in OPS.values() if op.modes and any(a.differentiable for a in op.arguments)
]


@pytest.mark.parametrize("given", ["required", "everything"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", TRAINED)
def test_every_trained_tensor_gets_a_gradient(
    name: str, size: int, given: str, subject: Subject
) -> None:
    op = OPS[name]
    case = op.full(op.modes[0].name, dict.fromkeys(op.dims, size), (size,), packed=False)
    if given == "required":
        defaults = {o.name: o.default for o in op.options if o.name in case.options}
        case = replace(case, given=(), options=defaults)
    inputs = subject.inputs(op, op.settle(case))
    leaves = {n: inputs.tensors[n].detach().requires_grad_() for n in inputs.trained}
    returned = getattr(kernels, name)(**inputs.given({**inputs.tensors, **leaves}))
    several = returned if isinstance(returned, tuple) else (returned,)
    outputs = [x for x in several if x is not None and x.requires_grad]
    found = torch.autograd.grad(
        outputs, [*leaves.values()], [torch.ones_like(x) for x in outputs], allow_unused=True
    )
    missing = [n for n, gradient in zip(leaves, found, strict=True) if gradient is None]
    assert not missing, f"no gradient of {', '.join(missing)}"
