"""What the tests of all pages share: both forms of an op, and numbers in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Form = Callable[..., Any]


def both_forms_of(op: Any) -> pytest.MarkDecorator:
    """Run a test with each form of an op as its argument `form`."""
    forms: list[Form] = [op, op.second_form]
    return pytest.mark.parametrize("form", forms, ids=lambda form: form.__name__)


def rows(*values: Any) -> Tensor:
    """Return a tensor of numbers."""
    return torch.tensor(values, dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    """Return gaussians."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def unit(x: Tensor) -> Tensor:
    """Divide vectors by their lengths."""
    return torch.nn.functional.normalize(x, dim=-1)


def assert_nothing_grows(run: Callable[..., tuple[Tensor, Tensor]], tokens: int) -> None:
    """Hold a final state to the size of the first one, of 3 heads with 5 keys and 2 values.

    Without values a state can only shrink; 2e-13 is 200 times a few roundings of its norm.

    Args:
        run: `(v, **options) -> (o, final_state)`.
    """
    v, S = torch.zeros(1, tokens, 3, 2, dtype=torch.float64), draw(3, 1, 3, 5, 2)
    _, state = run(v, initial_state=S, output_final_state=True)
    ratio = torch.linalg.matrix_norm(state, 2) / torch.linalg.matrix_norm(S, 2)
    assert (ratio <= 1 + 2e-13).all()
