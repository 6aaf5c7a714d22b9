import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

import reference
from reference.op import axes, op
from reference.recurrence import recurrence
from reference.sequences import CuSeqlens

OPS = [
    each for name in reference.__all__ if hasattr(each := getattr(reference, name), "second_form")
]

each_op = pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.__name__)


def doubled(x: Tensor, y: Tensor, g: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    return 2 * x, y


def added(x: Tensor, y: Tensor, g: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum of x and x.

    Source: arithmetic.
    """
    return x + x, y


TEXTS = {"x": "A text of the family.", "counts": "Numbers of things.", "y": "Never seen."}


@op(
    doubled,
    added,
    outputs=("z", "same"),
    same_dtype=("x", "y"),
    texts=TEXTS,
    raises=["bad luck"],
)
def twice(
    x: Float[Tensor, "B T"],
    y: Float[Tensor, "B N"],
    g: Float[Tensor, "B"] | None = None,
    *,
    counts: Int32[Tensor, "B"] | Int64[Tensor, "B"] | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B N"]]:
    """Twice x.

        z = 2 x

    Args:
        y: Returned as it is, and long enough that its description goes on, even when that is not
            needed, on another line.
        g: Ignored.

    Returns:
        z: Even.
        same: y.

    Raises:
        TypeError: x that is complex.
        ValueError: x that is odd.

    Source: arithmetic,
        chapter 1.
    """


def test_docstring_is_completed_from_the_annotations_and_the_family() -> None:
    assert (
        twice.__doc__
        == """\
Twice x.

    z = 2 x

Args:
    x: `[B, T]`. A text of the family.
    y: `[B, N]`, in the dtype of x. Returned as it is, and long enough that its description
        goes on, even when that is not needed, on another line.
    g: `[B]`, any float dtype. Ignored.
    counts: `[B]`, int32 or int64. Numbers of things.

Returns:
    z: `[B, T]`. Even.
    same: `[B, N]`. y.

Raises:
    TypeError: an argument of a wrong type or dtype; x, y not of one dtype; x that is
        complex.
    ValueError: shapes that do not match; x that is odd; bad luck.

Source: arithmetic,
    chapter 1."""
    )


def test_docstring_of_the_second_form_is_its_own() -> None:
    assert (
        twice.second_form.__doc__
        == """\
The sum of x and x.

Arguments, results and errors are those of `twice`.

Source: arithmetic."""
    )


def test_each_form_computes_its_function() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert [z.tolist() for z in twice(x, x)] == [[[2.0, 4.0]], [[1.0, 2.0]]]
    assert [z.tolist() for z in twice.second_form(x, x)] == [[[2.0, 4.0]], [[1.0, 2.0]]]
    assert twice.second_form.__name__ == "twice_added"


def test_both_forms_check_their_arguments() -> None:
    x = torch.tensor([[1.0, 2.0]])
    for form in (twice, twice.second_form):
        with pytest.raises(TypeError, match=r"^y: float64\[1, 2\], expected float32"):
            form(x, x.double())


def test_an_argument_without_a_text_is_refused() -> None:
    def undescribed(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Source: none."""

    with pytest.raises(ValueError, match=r"^undescribed: no text for x, z, expected"):
        op(doubled, added, outputs=("z",))(undescribed)


@each_op
def test_every_argument_and_result_is_described(spec: Any) -> None:
    described = inspect.getdoc(spec) or ""
    for name in inspect.signature(spec).parameters:
        assert f"\n    {name}: " in described
    assert described.count("\nSource: ") == 1


@each_op
def test_the_readme_says_what_each_letter_means(spec: Any) -> None:
    table = (Path(reference.__file__).parent / "README.md").read_text().partition("\n## ")[0]
    explained = re.findall(r"`(\w+)`", table)
    dims = [" ".join(axes(p.annotation)) for p in inspect.signature(spec).parameters.values()]
    letters = {*re.findall(r"\b[A-Z]\w*", " ".join(dims))}
    assert letters <= {*explained}


@each_op
def test_a_bad_scale_is_documented(spec: Any) -> None:
    if "scale" in inspect.signature(spec).parameters:
        text = " ".join((inspect.getdoc(spec) or "").split())
        assert "a scale that is NaN or infinite" in text


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
