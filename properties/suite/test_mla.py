"""Products with the projections of mla, whose operands are divided to stay in float16's range."""

import pytest
import torch

import kernels
import reference
from properties.laws import Subject

_NAMES = ("q_n", "q_r", "c", "k_r", "w_uk", "w_uv")
_SHAPES = ((1, 4, 2, 8), (1, 4, 2, 4), (1, 3, 8), (1, 3, 4), (2, 8, 8), (2, 8, 8))


@pytest.mark.parametrize("tiny", ["c", "w_uk", "w_uv"])
def test_gradients_of_large_cotangents_beside_tiny_inputs(tiny: str, subject: Subject) -> None:
    """The gradients of the other inputs fit into float16, the terms of their sums do not."""
    generator = torch.Generator().manual_seed(0)
    given = {
        name: (torch.randn(shape, generator=generator) * (2.0**-13 if name == tiny else 1)).half()
        for name, shape in zip(_NAMES, _SHAPES, strict=True)
    }
    do = torch.full((1, 4, 2, 8), 4e4, dtype=torch.float16)
    small = 2.0**-13 if tiny == "c" else 1.0
    found = {}
    for module, place, dtype in (
        (kernels, subject.device, torch.float16),
        (reference, torch.device("cpu"), torch.float64),
    ):
        leaves = {n: x.to(place, dtype).requires_grad_() for n, x in given.items()}
        o, _ = module.mla(**leaves)
        gradients = torch.autograd.grad(o, [leaves["c"], leaves["w_uv"]], (small * do).to(o))
        found[module.__name__] = [x.cpu().double() for x in gradients]
    for got, want in zip(found["kernels"], found["reference"], strict=True):
        representable = want.abs() < 6e4
        assert representable.any()
        # Twenty roundings of the largest.
        torch.testing.assert_close(
            got[representable], want[representable], rtol=0, atol=float(0.01 * want.abs().max())
        )
