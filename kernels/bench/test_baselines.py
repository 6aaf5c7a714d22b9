"""PyTorch computes what we do; of fla see `test_fla.py`."""

from typing import Any

import pytest
import torch

from kernels.bench.baselines import FLA, KINDS, Contender, available, contenders
from kernels.bench.groups import Call, Group
from kernels.bench.problems import PROBLEMS
from kernels.bench.shapes import Form, Shape

SHAPE = Shape(2, 3, 5, 4, 6)
PASSES = [
    (op, backward)
    for op, problem in PROBLEMS.items()
    for backward in (False, True)
    if op != "cache_append" and not (backward and problem.forward_only)
]
FORMS = [(op, form) for op, problem in PROBLEMS.items() for form in problem.forms]


@pytest.mark.parametrize(("op", "backward"), PASSES)
def test_all_that_is_timed_side_by_side_computes_the_same(
    op: str, backward: bool, subject: Any
) -> None:
    group = Group(op, SHAPE, torch.float32, backward, PROBLEMS[op].modes, ("torch",))
    calls = group.calls(subject.device)
    assert tuple(one.mode for one, _ in calls if one.kind == "ours") == PROBLEMS[op].modes
    # The same function of numbers about 1, in whatever precision a GPU's library multiplies: 11
    # bits with tf32.
    want = _all_the_same(calls, 2**-8)
    if backward:
        inputs = PROBLEMS[op].inputs(SHAPE, torch.float32, torch.device("cpu"))
        assert len(want) == len(inputs) - len(PROBLEMS[op].constants)
    else:
        assert len(want) == 1


@pytest.mark.parametrize(("op", "form"), [one for one in FORMS if one[0] != "cache_append"])
def test_every_form_can_be_called_and_modes_agree_in_it(op: str, form: Form, subject: Any) -> None:
    tokens = 1 if form == "decode" else 7
    recurrent = tuple(mode for mode in PROBLEMS[op].modes if mode == "fused_recurrent")
    chosen = recurrent if form == "decode" else PROBLEMS[op].modes
    group = Group(op, Shape(2, tokens, 3, 4, 6, form), torch.float32, False, chosen)
    _all_the_same(group.calls(subject.device), 2**-8)


def _all_the_same(
    calls: list[tuple[Contender, Call]], tolerance: float
) -> tuple[torch.Tensor, ...]:
    """Not in the backends that they are timed in, which want a GPU."""
    results = [call() for _, call in calls]
    for got in results[:-1]:
        torch.testing.assert_close(got, results[-1], rtol=tolerance, atol=tolerance)
    return results[-1]


def test_pages_get_the_same_tokens_by_pytorch_and_by_a_cache(subject: Any) -> None:
    problem = PROBLEMS["cache_append"]
    inputs = problem.inputs(SHAPE, torch.float32, subject.device)
    (pytorch,) = contenders("cache_append", ("torch",))
    paged = problem.function(**inputs, mode="paged").clone()
    inputs["k_pages"].zero_()
    assert paged.count_nonzero() == inputs["k"].numel()
    assert torch.equal(pytorch.function(**inputs), paged)
    inputs["k_pages"].zero_()
    contiguous = problem.function(**inputs, mode="contiguous")
    assert torch.equal(contiguous[:, SHAPE.T : 2 * SHAPE.T], inputs["k"])


def test_every_op_has_its_baselines() -> None:
    alone = {op for op in PROBLEMS if not contenders(op, KINDS)}
    assert alone == {"deltaformer", "mamba2", "sigmoid_attention", "titans"}
    assert set(FLA) <= set(PROBLEMS)
    assert available()[-1] == "torch"
    names = [one.name for one in contenders("attention", ("torch",))]
    assert names == ["torch flash", "torch cudnn", "torch efficient"]
    assert contenders("gla", ()) == []
    assert contenders("cache_append", ("fla",)) == []


def test_packed_attention_has_a_baseline_that_takes_boundaries() -> None:
    (one,) = contenders("attention", ("torch",), form="packed")
    assert one.name == "torch varlen_attn"


def test_packed_attention_and_its_baseline_compute_the_same(gpu: torch.device) -> None:
    shape = Shape(3, 40, 2, 64, 64, "packed")
    group = Group("attention", shape, torch.float16, False, ("parallel",), ("torch",))
    _all_the_same(group.calls(gpu), 2**-6)
