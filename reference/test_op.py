import inspect
import pickle
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import reference
from reference.op import op
from reference.recurrence import recurrence
from reference.sequences import CuSeqlens

OPS = [
    each for name in reference.__all__ if hasattr(each := getattr(reference, name), "second_form")
]

each_op = pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.__name__)


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def added(x: Tensor) -> Tensor:
    """The sum of x and x.

    Source: arithmetic.
    """
    return x + x


@op(doubled, added, outputs=("y",), texts={"x": "A text of the family."}, raises=["bad luck"])
def twice(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Twice x.

        y = 2 x

    Returns:
        y: In the dtype of x.

    Raises:
        ValueError: x that is odd.

    Source: arithmetic.
    """


def test_docstring_is_completed_from_the_annotations_and_the_family() -> None:
    assert (
        inspect.getdoc(twice)
        == """\
Twice x.

    y = 2 x

Args:
    x: `[B, T]`. A text of the family.

Returns:
    y: `[B, T]`. In the dtype of x.

Raises:
    TypeError: an argument of a wrong type or dtype.
    ValueError: shapes that do not match; x that is odd; bad luck.

Source: arithmetic."""
    )
    assert (
        inspect.getdoc(twice.second_form)
        == """\
The sum of x and x.

Arguments, results and errors are those of `twice`.

Source: arithmetic."""
    )


def test_each_form_computes_its_function() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert twice(x).tolist() == twice.second_form(x).tolist() == [[2.0, 4.0]]
    assert twice.second_form.__name__ == "twice_added"


def test_an_argument_without_a_text_is_refused() -> None:
    def undescribed(y: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Source: none."""

    with pytest.raises(ValueError, match=r"^undescribed: no text for y, z, expected"):
        op(doubled, added, outputs=("z",))(undescribed)


@each_op
def test_every_argument_and_result_is_described(spec: Any) -> None:
    described = inspect.getdoc(spec) or ""
    for name in inspect.signature(spec).parameters:
        assert f"\n    {name}: " in described
    assert described.count("\nSource: ") == 1


@each_op
def test_both_forms_have_one_signature(spec: Any) -> None:
    assert inspect.signature(spec) == inspect.signature(spec.second_form)
    assert "jaxtyping" in str(inspect.signature(spec))


@each_op
def test_both_forms_survive_pickling(spec: Any) -> None:
    assert pickle.loads(pickle.dumps(spec)) is spec
    assert pickle.loads(pickle.dumps(spec.second_form)) is spec.second_form


def test_a_recurrence_runs_its_form_over_each_sequence() -> None:
    def sums(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        y = S[:, None] + x.cumsum(1)
        return y, y[:, -1]

    @recurrence(sums, sums, same_dtype=("x",), outputs=("y", "final_state"))
    def running_sum(
        x: Float[Tensor, "B T K"],
        *,
        initial_state: Float[Tensor, "N K"] | None = None,
        output_final_state: bool = False,
        reverse: bool = False,
        cu_seqlens: CuSeqlens | None = None,
    ) -> tuple[Float[Tensor, "B T K"], Float[Tensor, "N K"] | None]:
        """The running sum of x.

        Args:
            x: Numbers.

        Source: arithmetic.
        """

    x = torch.tensor([[[1.0], [2.0], [4.0]]])
    y, state = running_sum(x, initial_state=torch.tensor([[8.0]]), output_final_state=True)
    assert y.flatten().tolist() == [9, 11, 15]
    assert state is not None
    assert state.tolist() == [[15.0]]
    y, _ = running_sum(x, cu_seqlens=torch.tensor([0, 1, 3]), reverse=True)
    assert y.flatten().tolist() == [1, 6, 4]
