"""Tests of what `help` says of an op, and of how an op may be called."""

import inspect
import re
from typing import Any, Literal, get_args

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import kernels
from kernels.linear import chunk, fused_recurrent
from kernels.op import axes, op
from kernels.recurrence import REGISTERED, recurrence
from kernels.tiles import TABLE


def double(
    x: Float[Tensor, "B T"],
    y: Float[Tensor, "B T"] | None = None,
    *,
    times: int = 2,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T"]:
    """Two times x, `reference.double`."""


HELP = """\
Two times x, `reference.double`.

`help(reference.double)` has the equation and explains the arguments.

Any sizes. Tensors may have any strides.

Args:
    x: `[B, T]`, float32, bfloat16 or float16.
    y: `[B, T]`, in the dtype of x or float32.
    times: As in `reference.double`.
    mode: `fused`, or `auto` for a choice.
    tile: No other.

Returns:
    z: `[B, T]`, in the dtype of x.

Raises:
    TypeError: an argument of a wrong type or dtype.
    ValueError: shapes or devices that do not match; a bad number; an unknown mode or tile.
    NotImplementedError: a gradient of a kernel's gradient."""


def _decorated(**changed: Any) -> Any:
    return op(
        lambda **given: given,
        outputs=("z",),
        about="Any sizes.",
        same_dtype=changed.get("same_dtype", ()),
        texts={"tile": "No other."},
        raises=["a bad number"],
    )(double)


def test_help_has_the_shapes_and_limits() -> None:
    assert _decorated().__doc__ == HELP
    together = _decorated(same_dtype=("x", "y")).__doc__
    assert "    y: `[B, T]`, in the dtype of x.\n" in together
    assert "wrong type or dtype; x, y not of one dtype." in together


def test_a_call_has_every_argument_by_its_name() -> None:
    x, defaults = torch.zeros(1, 1), {"y": None, "times": 2, "mode": "auto", "tile": None}
    assert _decorated()(x, times=3) == defaults | {"x": x, "times": 3}
    assert _decorated()(x, 2, tile=0) == defaults | {"x": x, "y": 2, "tile": 0}


def test_a_call_that_does_not_fit_the_signature_is_refused() -> None:
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"x": 1})):
        with pytest.raises(TypeError, match=r"double\(\)"):
            _decorated()(*args, **kwargs)


FUNCTIONS = [n for n in kernels.__all__ if hasattr(getattr(kernels, n), "__code__")]
OPS = [n for n in FUNCTIONS if "mode" in inspect.signature(getattr(kernels, n)).parameters]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_none_in_the_place_of_a_tensor_is_refused(name: str) -> None:
    function = getattr(kernels, name)
    parameters = inspect.signature(function).parameters.values()
    required = {p.name: axes(p.annotation) for p in parameters if p.default is p.empty}
    given = dict.fromkeys(required, torch.zeros(1))
    for tensor in filter(required.get, required):
        with pytest.raises(TypeError, match=rf"^{tensor}: None"):
            function(**{**given, tensor: None})


def test_the_signature_is_that_of_the_page_and_the_code_is_its_own() -> None:
    function = _decorated()
    assert inspect.signature(function) == inspect.signature(double)
    assert function.__code__.co_name == "double"
    assert function.__code__ is not _decorated().__code__


def test_help_says_what_a_mode_does_and_lacks() -> None:
    said = " ".join(inspect.getdoc(kernels.gla).split())
    assert "`chunk` computes all chunks" in said
    assert "`gv` with mode 'chunk'; `reverse` with mode 'chunk'; an unknown" in said
    assert 'TABLE["gla", mode]' in said
    assert "cu_seqlens: `[N+1]`, int32 or int64." in said
    assert "H not G, 2 G, 3 G, ..." not in said
    assert "H not G, 2 G, 3 G, ..." in " ".join(inspect.getdoc(kernels.kda).split())
    assert "NaN" not in inspect.getdoc(kernels.mamba2)


def test_help_says_integers_of_boundaries() -> None:
    """Where a family says nothing of them: theirs is no dtype of q."""
    for page in (kernels.mla, kernels.paged_attention, kernels.selected_attention):
        assert "    cu_seqlens: `[N+1]`, int32 or int64.\n" in inspect.getdoc(page)


@pytest.mark.parametrize("name", OPS)
def test_help_names_a_row_of_tiles_and_what_is_refused(name: str) -> None:
    page = getattr(kernels, name)
    parameters = inspect.signature(page).parameters
    said = " ".join(inspect.getdoc(page).split())
    _, *modes = get_args(parameters["mode"].annotation)
    for row, mode in re.findall(r'TABLE\["(\w+)", "?(\w+)"?\]', said):
        assert all((row, each) in TABLE for each in (modes if mode == "mode" else [mode]))
    refused = said.partition("Raises:")[2]
    for argument, words in (("scale", "a scale that is NaN"), ("cu_seqlens", "with B != 1")):
        assert argument not in parameters or words in refused


def test_the_modes_of_a_signature_are_those_of_its_kernels() -> None:
    def page(mode: Literal["auto", "chunk"] = "auto") -> None: ...

    with pytest.raises(ValueError, match=r"page: modes .*expected 'auto', \['chunk', 'fused_rec"):
        recurrence(chunk, fused_recurrent)(page)
    assert not [op for op, _ in REGISTERED if op == "page"]


def test_left_out_strengths_are_1(subject: Any) -> None:
    x = torch.randn(1, 3, 2, 4, device=subject.device)
    ones = torch.ones(1, 3, 2, device=subject.device)
    assert torch.equal(kernels.delta_rule(x, x, x)[0], kernels.delta_rule(x, x, x, ones)[0])


def test_options_of_the_family_are_spelled_out() -> None:
    signature = inspect.signature(kernels.kda)
    assert [*signature.parameters][-4:] == ["output_final_state", "cu_seqlens", "mode", "tile"]
    assert signature.parameters["output_final_state"].default is False
    x = torch.zeros(1, 1, 1, 1)
    with pytest.raises(TypeError, match=r"kda\(\) got an unexpected keyword argument 'scales'"):
        kernels.kda(x, x, x, scales=1.0)
