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
