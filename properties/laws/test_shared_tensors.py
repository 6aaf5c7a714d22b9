"""Gradients of several calls are summed beyond float16, and infinite parts are known."""

import math

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.jobs import judge
from properties.laws import Subject
from properties.laws.shared_tensors import SharedTensors, summed

inf, nan = math.inf, math.nan


def gradient_of_two_calls(first: list[float], second: list[float]) -> tuple[Tensor, Tensor | None]:
    """The sum of two gradients of one float16 tensor, and where a part of it is infinite."""
    x = torch.zeros(len(first), dtype=torch.float16)
    shared = SharedTensors(Inputs({"x": x}, {}, trained=("x",)))
    leaf = shared.leaves(Inputs({"x": x}, {}, trained=("x",))).tensors["x"].requires_grad_()
    both = torch.cat([shared.of_a_call({"x": leaf})["x"] for _ in range(2)])
    assert both.dtype == torch.float16
    (dx,) = torch.autograd.grad(both, leaf, torch.tensor([*first, *second]).half())
    return shared.rounded({"dx": dx})["dx"], shared.infinite.get("dx")


def test_the_sum_of_two_calls_is_rounded_once() -> None:
    # In float16 60000 + 40000 is inf; 2048 + 1 is 2048, 1 + 2048 + ... too.
    dx, infinite = gradient_of_two_calls([60000.0, 1.0, 60000.0], [-40000.0, 2.0, 40000.0])
    assert dx.tolist() == [20000.0, 3.0, inf]
    assert infinite is not None
    assert not infinite.any()


def test_an_infinite_part_is_known_and_one_of_nan_is_not_excused() -> None:
    dx, infinite = gradient_of_two_calls([inf, inf, nan, 1.0], [-inf, 5.0, 5.0, 1.0])
    assert infinite is not None
    assert infinite.tolist() == [True, True, False, False]
    assert dx[2].isnan()
    assert dx[3] == 2.0


def test_other_tensors_stay_as_they_are() -> None:
    x, y = torch.zeros(2), torch.ones(2, dtype=torch.float16)
    inputs = Inputs({"x": x, "y": y}, {}, trained=("x",))
    shared = SharedTensors(inputs)
    assert shared.leaves(inputs).tensors["y"] is y
    assert shared.of_a_call({"x": x.double(), "y": y})["x"].dtype == torch.float32
    assert shared.of_a_call({"y": y})["y"] is y
    assert not shared.infinite


def test_a_tensor_passed_as_two_arguments_is_one() -> None:
    x = torch.zeros(1, dtype=torch.float16)
    inputs = Inputs({"x": x}, {}, same={"y": "x"}, trained=("x",))
    shared = SharedTensors(inputs)
    leaf = shared.leaves(inputs).tensors["x"].requires_grad_()
    given = shared.of_a_call({"x": leaf, "y": leaf})
    assert given["y"].dtype == torch.float16
    torch.autograd.grad(given["y"], leaf, torch.tensor([inf]).half())
    assert shared.infinite["dx"].all()


def test_gradients_of_calls_apart_are_summed_in_float64() -> None:
    parts = torch.tensor([[60000.0, 60000.0, inf, nan], [60000.0, -49984.0, -inf, 1.0]]).half()
    total, infinite = summed(parts)
    assert total[:2].tolist() == [inf, 10016.0]
    assert infinite.tolist() == [False, False, True, False]
    assert total[3].isnan()
    assert summed(torch.tensor([[40000.0], [40000.0], [-40000.0]]).half())[0].item() == 40000.0


def test_merging_holds_where_the_queries_are_the_keys(subject: Subject) -> None:
    case = Case(
        op="attention",
        mode="parallel",
        dtype="float32",
        dims={"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
        lengths=(2,),
        key_lengths=(2,),
        options={"causal": False, "scale": 1.0, "return_lse": True},
        same={"q": "k"},
    )
    assert judge("merging", case, subject) is not None
