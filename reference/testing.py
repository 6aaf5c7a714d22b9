"""Helpers for the tests of all pages: both forms of an op, and numbers in float64."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

Form = Callable[..., Any]

# Arguments of a call, the error that they raise, and how its message starts.
Bad = tuple[dict[str, Any], type[Exception], str]


def both_forms_of(op: Any) -> pytest.MarkDecorator:
    """Run a test with each form of an op as its argument `form`."""
    forms: list[Form] = [op, op.second_form]
    return pytest.mark.parametrize("form", forms, ids=lambda form: form.__name__)


def each_bad(calls: Mapping[str, Bad]) -> pytest.MarkDecorator:
    """Run a test with each of these calls as its argument `bad`."""
    return pytest.mark.parametrize("bad", calls.values(), ids=calls)


def assert_refused(bad: Bad, form: Form, **good: Any) -> None:
    """Call a form with bad arguments in the place of good ones."""
    arguments, error, message = bad
    with pytest.raises(error) as caught:
        form(**{**good, **arguments})
    assert str(caught.value).startswith(message)


def bad_boundaries(**tensors: Tensor) -> dict[str, Bad]:
    """Return bad `cu_seqlens` of the first row of each tensor, which has 7 tokens."""
    one = {name: x[:1] for name, x in tensors.items()}
    return {
        f"cu_seqlens {boundaries}": (
            {**one, "cu_seqlens": torch.tensor(boundaries)},
            ValueError,
            f"cu_seqlens: {message}",
        )
        for boundaries, message in [
            ([1, 7], "starts at 1, expected 0"),
            ([0, 4, 3, 7], "decreases from 4 to 3"),
            ([0, 6], "ends at 6, expected T=7"),
        ]
    }


def rows(*values: Any) -> Tensor:
    """Return a float64 tensor of these numbers, or of these rows of numbers."""
    return torch.tensor(values, dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    """Return float64 gaussians of this shape."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def unit(x: Tensor) -> Tensor:
    """Divide vectors by their lengths."""
    return torch.nn.functional.normalize(x, dim=-1)


def assert_forgets(form: Form, op: Form, *tensors: Tensor, tolerance: float) -> None:
    """Compare a sequence whose gate g is closed at token 3 with a new sequence from there on.

    Args:
        form: of `op`.
        tensors: q, k, v and g `[1, 7, H]`, and what comes after them.
    """
    leaves = [x.requires_grad_() for x in tensors]
    o, final_state = form(*leaves, output_final_state=True)
    expected, states = op(*leaves, output_final_state=True, cu_seqlens=torch.tensor([0, 3, 7]))
    torch.testing.assert_close(o, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(final_state[0], states[1], rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(o.sum() + final_state.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(gradients[3][:, 3], torch.zeros_like(leaves[3][:, 3]))


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
