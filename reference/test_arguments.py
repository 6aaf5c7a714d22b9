import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

import reference
from reference.arguments import checked, same_dtype


@checked(same_dtype=("x", "y"))
def typed_op(
    x: Float[Tensor, "B T D"],
    y: Float[Tensor, "B T E"] | None = None,
    *,
    wide: bool = False,
    state: Float[Tensor, "N E+wide"] | None = None,
    count: int | Int32[Tensor, "N"] | Int64[Tensor, "N"] = 0,
    factor: float | None = None,
    cu_seqlens: Int32[Tensor, "N+1"] | Int64[Tensor, "N+1"] | None = None,
) -> Tensor:
    """The docstring."""
    return x


op: Callable[..., Tensor] = typed_op  # untyped arguments, so that calls may be wrong

X = torch.zeros(2, 3, 5)
Y = torch.zeros(2, 3, 7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"y": None},
        {"state": torch.zeros(2, 7)},
        {"state": torch.zeros(2, 8), "wide": True},
        {"count": torch.zeros(2, dtype=torch.int32)},
        {"factor": 3},
        {"factor": 3.5},
        {"factor": 2**70, "count": -(2**63) + 1},
        {"cu_seqlens": torch.tensor([0, 1, 1, 3]), "state": torch.zeros(3, 7)},
    ],
)
def test_what_the_annotations_allow_passes(options: dict[str, Any]) -> None:
    assert op(X, **{"y": Y, **options}) is X


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: op(X[0]), r"x: float32[3, 5], expected [B, T, D]"),
        (lambda: op(X, Y[:1]), r"y: float32[1, 3, 7], expected [B, T, E] with B=2, T=3"),
        (lambda: op(X, Y[0]), r"y: float32[3, 7], expected [B, T, E] with B=2, T=3"),
        (
            lambda: op(X, Y, state=torch.zeros(2, 7), wide=True),
            r"state: float32[2, 7], expected [N, E+wide] with N=2, E=7, wide=1",
        ),
        (
            lambda: op(X, Y, state=torch.zeros(2, 7), cu_seqlens=torch.tensor([0, 3])),
            r"state: float32[2, 7], expected [N, E+wide] with N=1, E=7, wide=0",
        ),
        (
            lambda: op(X, cu_seqlens=torch.tensor([[0, 3]])),
            r"cu_seqlens: int64[1, 2], expected [N+1]",
        ),
        (
            lambda: op(X, cu_seqlens=torch.zeros(0, dtype=torch.int64)),
            r"cu_seqlens: int64[0], expected [N+1]",
        ),
        (
            lambda: op(X, count=torch.tensor([1, 2, 3])),
            r"count: int64[3], expected [N] with N=2",
        ),
        (
            lambda: op(X, count=2**63),
            r"count: 9223372036854775808 (int), expected a number of 64 bits",
        ),
        (
            lambda: op(X, factor=-(2**1024)),
            r"factor: -17976931348623159...5356329624224137216 (int), expected a number of 64 bits",
        ),
        (
            lambda: op(X, Y.to("meta")),
            r"y: on meta, expected cpu, the device of x",
        ),
    ],
)
def test_a_wrong_size_is_a_value_error(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: op(X.long()), r"x: int64[2, 3, 5], expected float[B, T, D]"),
        (lambda: op([[[1.0]]]), r"x: [[[1.0]]] (list), expected float[B, T, D]"),
        (lambda: op(None), r"x: None (NoneType), expected float[B, T, D]"),
        (lambda: op(X, Y.double()), r"y: float64[2, 3, 7], expected float32, the dtype of x"),
        (lambda: op(X, wide=1), r"wide: 1 (int), expected bool"),
        (lambda: op(X, factor=True), r"factor: True (bool), expected float or None"),
        (lambda: op(X, factor="2"), r"factor: '2' (str), expected float or None"),
        (lambda: op(X, count=True), r"count: True (bool), expected int or int32[N] or int64[N]"),
        (
            lambda: op(X, count=torch.zeros(2)),
            r"count: float32[2], expected int or int32[N] or int64[N]",
        ),
        (
            lambda: op(X, cu_seqlens=torch.tensor([0, 3], dtype=torch.int16)),
            r"cu_seqlens: int16[2], expected int32[N+1] or int64[N+1] or None",
        ),
        (lambda: op(), r"typed_op: missing a required argument: 'x'"),
        (lambda: op(X, heads=2), r"typed_op: got an unexpected keyword argument 'heads'"),
    ],
)
def test_a_wrong_kind_is_a_type_error(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_the_sizes_of_one_call_do_not_reach_into_the_next() -> None:
    op(X, Y)
    op(X[:, :1, :2], Y[:, :1, :3])


def test_the_signature_and_docstring_are_those_of_the_page() -> None:
    assert op.__doc__ == "The docstring."
    parameters = inspect.signature(reference.gla).parameters
    assert list(parameters)[:4] == ["q", "k", "v", "g"]
    assert "B T H K" in str(parameters["q"].annotation)
    assert "S_t = diag(exp g_t)" in (inspect.getdoc(reference.gla) or "")


def test_which_arguments_share_a_dtype_can_be_asked() -> None:
    assert same_dtype(op) == ("x", "y")
    assert same_dtype(reference.attention) == ("q", "k", "v")
    assert same_dtype(reference.rotary_embedding) == ("cos", "sin")
    assert same_dtype(reference.resolve_scale) == ()
