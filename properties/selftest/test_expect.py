"""When the comparison with the oracle computes an error budget."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.cases.case import Case
from properties.catalogue import OPS, Op
from properties.catalogue.op import Function
from properties.laws import LAWS, Subject, Violation
from properties.targets.oracle import Oracle
from properties.targets.ours import target
from properties.verdict import Budget, budgets, compare, oracle
from properties.verdict.precision import underflow, unit_roundoff
from properties.verdict.sigma import DRAWS, FEW_DRAWS, MANY_DRAWS

CASE = Case.of(
    "simple_gla",
    "chunk",
    {"B": 2, "H": 2, "K": 5, "V": 3},
    (7,),
    dtype="bfloat16",
    given=("g", "initial_state"),
    options={"scale": 0.5, "output_final_state": True},
    values="integers",
)


@dataclass
class Off(Oracle):
    """The oracles, with one element of `o` off by this much."""

    by: float = 0.0

    def function(self, op: Op) -> Function:
        inner: Any = super().function(op)

        def function(**given: Any) -> Any:
            o, *rest = inner(**given)
            error = torch.zeros_like(o)
            error.view(-1)[5] = self.by
            return o + error, *rest

        return function


@dataclass
class Cast(Oracle):
    """The oracles, with one output in another dtype."""

    output: str
    dtype: torch.dtype

    def function(self, op: Op) -> Function:
        inner: Any = super().function(op)

        def function(**given: Any) -> Any:
            named = zip(op.outputs, inner(**given), strict=True)
            return tuple(y.to(self.dtype) if o.name == self.output else y for o, y in named)

        return function


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each budget computed, its number of perturbed runs."""
    asked: list[int] = []

    def counting(*args: Any, draws: int, **kwargs: Any) -> Any:
        asked.append(draws)
        return budgets(*args, draws=draws, **kwargs)

    monkeypatch.setattr(oracle, "budgets", counting)
    return asked


def judged(case: Case, off: float, *, quick: bool = True) -> float:
    subject = Subject(Off(off), torch.device("cpu"), quick=quick)
    return LAWS["differential"](OPS[case.op], case, subject)


@pytest.mark.parametrize("quick", [True, False])
def test_results_equal_to_the_rounded_oracle_need_no_budget(
    quick: bool, counted: list[int]
) -> None:
    assert judged(CASE, 0.0, quick=quick) == 0.0
    assert not counted


def test_one_element_that_differs_needs_a_budget(counted: list[int]) -> None:
    with pytest.raises(Violation, match="the error exceeds its budget"):
        judged(CASE, 1000.0)
    assert counted == [FEW_DRAWS, DRAWS]


def test_an_error_within_the_budget_is_acquitted_by_the_quick_one(counted: list[int]) -> None:
    assert 0 < judged(replace(CASE, values="gaussian"), 2.0**-7) < 1
    assert counted == [FEW_DRAWS]


def test_no_budget_but_the_first_is_asked_about_nan(counted: list[int]) -> None:
    case = Case.of(
        "attention", "parallel", {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3}, (9,), dtype="bfloat16"
    )
    with pytest.raises(Violation, match="NaN where a number is expected"):
        judged(case, math.nan)
    assert counted == [FEW_DRAWS]


OTHERWISE_STORED = [DRAWS, DRAWS]


@pytest.mark.parametrize("off", [0.05, 0.5])
def test_an_error_of_some_budgets_of_a_softmax_needs_many_runs(
    off: float, counted: list[int]
) -> None:
    case = Case.of(
        "attention", "parallel", {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3}, (9,), dtype="bfloat16"
    )
    with pytest.raises(Violation, match="the error exceeds its budget"):
        judged(case, off)
    assert counted == [FEW_DRAWS, DRAWS, MANY_DRAWS, *OTHERWISE_STORED]


@pytest.mark.parametrize(
    ("R", "keys", "seed"),
    [(1, 172, 0), (2, 100, 30), (2, 100, 40)],
)
def test_roundings_may_multiply_a_weight(
    R: int, keys: int, seed: int, device: torch.device
) -> None:
    """Latents around 2^8 make keys whose rounding to bfloat16 moves logits by 2 or 3."""
    case = Case.of(
        "mla",
        "parallel",
        {"B": 1, "R": R, "H": 1, "K": 15, "V": 1, "D": 16},
        (1,),
        key_lengths=(keys,),
        dtype="bfloat16",
        options={"causal": False, "scale": 1.0, "return_lse": True},
        values="offset",
        seed=seed,
    )
    LAWS["differential"](OPS[case.op], case, Subject(target(device), device))


def test_less_rounding_than_allowed_may_cost_more_where_logits_are_equal(
    counted: list[int], device: torch.device
) -> None:
    # One row is q (1 - 1) k for all keys before it: noise of 2^-8 lets one key have all the weight.
    # The kernel keeps 16 bits.
    case = Case.of(
        "path_attn",
        "parallel",
        {"B": 9, "G": 1, "R": 1, "K": 1, "V": 1},
        (31,),
        dtype="bfloat16",
        options={"scale": None},
        values="large_values",
        same={"q": "v"},
    )
    subject = Subject(target(device), device, quick=True)
    LAWS["differential"](OPS[case.op], case, subject)
    assert counted == [FEW_DRAWS, DRAWS, MANY_DRAWS, *OTHERWISE_STORED]


def test_gradients_may_be_subnormal_on_the_way(device: torch.device) -> None:
    # The kernel divides cotangents by 2^7, and the gradient of a softmax over one key is an error.
    case = Case.of(
        "differential_attention",
        "parallel",
        {"B": 2, "G": 1, "R": 1, "K": 2, "V": 128},
        (1,),
        dtype="float16",
        options={"causal": False, "window": None, "scale": None},
        cotangents="large",
    )
    LAWS["scale_equivariance"](OPS[case.op], case, Subject(target(device), device, quick=True))


def test_the_budget_of_two_calls_knows_that_the_state_between_them_is_rounded(
    device: torch.device,
) -> None:
    """Keys, values and `i` are 0, so that in one call nothing of `i` is rounded, whose gradient is
    0. The gradient of the state between two calls cancels with the rest of it up to rounding.
    """
    case = Case.from_json(
        '{"op":"mlstm","mode":"fused_chunk","dtype":"float32","dims":{"B":1,"H":1,"K":33,"V":9},'
        '"lengths":[16,16,16],"packed":true,"given":["initial_state"],"float32":["i","g"],'
        '"options":{"scale":-1.0,"output_final_state":true},"values":"zeros","frozen":["q"],'
        '"silent":["final_state"],"seed":2075}'
    )
    LAWS["splitting"](OPS["mlstm"], case, Subject(target(device), device))


def test_only_a_quick_verdict_takes_fewer_perturbed_runs(counted: list[int]) -> None:
    assert 0 < judged(replace(CASE, values="gaussian"), 2.0**-7, quick=False) < 1
    assert counted == [DRAWS]


@pytest.mark.parametrize(
    ("output", "dtype", "told"),
    [
        ("o", torch.float64, "it returns o in float64, expected bfloat16"),
        ("final_state", torch.bfloat16, "it returns final_state in bfloat16, expected float32"),
    ],
)
def test_an_output_in_another_dtype_is_reported(output: str, dtype: torch.dtype, told: str) -> None:
    subject = Subject(Cast(output, dtype), torch.device("cpu"), quick=True)
    with pytest.raises(Violation, match=told):
        LAWS["differential"](OPS[CASE.op], CASE, subject)


class _WithAGradientInFloat64(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.double()


def test_autograd_casts_a_gradient_to_the_dtype_of_its_input() -> None:
    """So `expect` need not judge the dtype of a gradient."""
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    y = _WithAGradientInFloat64.apply(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert dx.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_rounded_oracle_passes_where_only_rounding_is_allowed(
    dtype: torch.dtype,
) -> None:
    """From subnormal numbers to those that overflow in float16."""
    generator = torch.Generator().manual_seed(0)
    smallest = math.log2(torch.finfo(dtype).tiny) - 12
    want = torch.randn(4096, dtype=torch.float64, generator=generator)
    want *= 2.0 ** torch.linspace(smallest, 17, 4096, dtype=torch.float64)
    rounding = unit_roundoff(dtype) * want.abs() + underflow(dtype)
    assert compare("o", want.to(dtype), want, None).passed
    assert compare("o", want.to(dtype), want, Budget(rounding, "rounding")).passed


def test_gradients_of_a_tensor_that_is_passed_twice_are_rounded_twice() -> None:
    """dk and dv nearly cancel, each rounded: a budget of one rounding refuses the oracle."""
    case = Case.of(
        "mesa_net",
        "chunk",
        {"B": 3, "H": 2, "K": 2, "V": 2},
        (120,),
        dtype="bfloat16",
        given=("beta",),
        options={"use_qk_l2norm_in_kernel": False, "output_final_state": False},
        values="late_maximum",
        same={"v": "k"},
        seed=115,
    )
    assert 0 < judged(case, 0.0) < 1
