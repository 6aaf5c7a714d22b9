"""The limits that the help of an op states: of sizes, and of numbers, which float32 must hold.

They are no mistakes of `rejection`: libraries have limits of their own, and compute with numbers of
float64.
"""

import inspect
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernels
import reference
from properties.cases.case import Case
from properties.cases.tensors import build
from properties.catalogue import OPS
from properties.device import recorded_launches
from properties.laws import Subject
from properties.suite.caches.calls import check_refusal

# Dims of channels, heads of an indexer, and the rank of a latent may have any size.
_FREE = ("D", "I", "R")


def _stated(name: str) -> dict[str, int]:
    """Letter → its largest size by the help of an op; a sum has the limit of its terms."""
    refused = (inspect.getdoc(getattr(kernels, name)) or "").partition("Raises:")[2]
    limits = re.findall(
        r"((?:\w(?:, | or | \+ ))*\w) outside 1 to (\d+)", " ".join(refused.split())
    )
    return {dim: int(most) for dims, most in limits for dim in re.findall(r"\b\w\b", dims)}


LIMITS = {name: _stated(name) for name, op in OPS.items() if op.modes}


def _case(name: str, **sizes: int) -> Case:
    """A small case without what is optional, with these sizes if the op has such cases."""
    op = OPS[name]
    dims = {letter: sizes.get(letter, 2) for letter in op.dims}
    case = op.full(op.modes[0].name, dims, (2,), packed=False)
    return op.settle(replace(case, dtype="float32", given=()))


def _given(case: Case) -> dict[str, Any]:
    return {**build(OPS[case.op], case).given(), "mode": case.mode}


@pytest.mark.parametrize(
    ("name", "letter", "size"),
    [
        (name, letter, size)
        for name, limits in LIMITS.items()
        for letter, most in limits.items()
        for size in (0, most + 1)
        if _case(name, **{letter: size}).dims[letter] == size
    ],
)
def test_a_size_outside_the_limits_of_help_is_refused(name: str, letter: str, size: int) -> None:
    # Latent attention has one limit for K + D.
    summed = {"K", "D"} <= LIMITS[name].keys() and letter in "KD"
    others = {"K": 0, "D": 0} if summed else {}
    given = _given(_case(name, **others | {letter: size}))
    with recorded_launches() as launched, pytest.raises(ValueError, match=rf"\b{letter}\b|_dim\b"):
        getattr(kernels, name)(**given)
    assert not launched


@pytest.mark.parametrize("size", [0, 1, 600])
@pytest.mark.parametrize(
    ("name", "letter"),
    [
        (name, letter)
        for name, limits in LIMITS.items()
        for letter in _FREE
        if letter in {*OPS[name].dims} - {*limits} and not (letter == "R" and "G" in OPS[name].dims)
    ],
)
def test_a_size_without_a_limit_in_help_may_be_any(
    name: str, letter: str, size: int, subject: Subject
) -> None:
    op, case = OPS[name], _case(name, **{letter: size})
    given = build(op, case, subject.device).given()
    got = op.named(getattr(kernels, name)(**given, mode=case.mode))
    want = op.named(op.oracle(**given))
    assert {n: y.shape for n, y in got.items()} == {n: y.shape for n, y in want.items()}


# Options that are numbers, and those of them that may not be 0.
NUMBERS = [
    (op.name, option.name, 0.0 in option.bad)
    for op in OPS.values()
    if op.modes
    for option in op.options
    if any(isinstance(bad, float) and math.isnan(bad) for bad in option.bad)
]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "option", "nonzero"), NUMBERS)
def test_a_number_that_float32_does_not_hold_is_refused(
    name: str, option: str, nonzero: bool, sign: int
) -> None:
    given = _given(_case(name))
    for size in (1e39, 2.0**128 - 2.0**100, 10**400):
        given[option] = sign * size
        check_refusal(option, lambda: getattr(kernels, name)(**given))
    del given["mode"]
    # A number that may be 0 loses nothing if it is taken for 0, and the spec may hold more.
    for size in (1e39, 2.0**128 - 2.0**100, 1e-60, 2.0**-127) if nonzero else ():
        given[option] = sign * size
        check_refusal(option, lambda: getattr(reference, name)(**given))
        check_refusal(option, lambda: getattr(kernels, name)(**given))


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.modes])
def test_a_mode_that_is_no_str_is_of_a_wrong_type(name: str) -> None:
    given = _given(_case(name))
    for mode in (None, 1, ["fused"], torch.tensor(1)):
        with pytest.raises(TypeError, match=r"^mode: "):
            getattr(kernels, name)(**{**given, "mode": mode})
