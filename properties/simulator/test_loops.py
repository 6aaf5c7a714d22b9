"""Triton's frontend visits the body of a loop once, with Triton's own results and errors."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

import properties.simulator as simulator


@pytest.fixture(autouse=True)
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test compiles its kernel: the cache is empty."""
    monkeypatch.setenv("TRITON_SIM_CACHE", str(tmp_path))
    with simulator.simulating():
        yield


@triton.jit
def three_loops(out, n):
    total = 0
    for i in range(n):
        j = 0
        while j < n:
            for k in range(j):
                tl.static_print("visited")
                total += i * k
            j += 1
    tl.store(out, total)


def test_the_body_of_loops_within_loops_is_visited_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = torch.empty(1, dtype=torch.int32)
    three_loops[(1,)](out, 5)
    assert out.item() == sum(i * k for i in range(5) for j in range(5) for k in range(j))
    assert capsys.readouterr().out.count("visited") == 1


@triton.jit
def assigned_in_a_branch(out, n, ADD: tl.constexpr):
    total, pair = tl.load(out), (n, n + 1)
    for i in range(n):
        if ADD:
            total += i
            pair = (pair[1], pair[0])
        n = 7
    tl.store(out, total + 100 * pair[0] + 1000 * n)


@pytest.mark.parametrize(("add", "expected"), [(True, 1 + 3 + 400), (False, 1 + 300)])
def test_a_variable_assigned_in_a_branch_that_is_not_compiled_keeps_its_value(
    add: bool, expected: int
) -> None:
    out = torch.ones(1, dtype=torch.int32)
    assigned_in_a_branch[(1,)](out, 3, add)
    assert out.item() == expected + 7000


@triton.jit
def type_changes(out, n):
    total = n
    for _ in range(n):
        total = total + 0.5
    tl.store(out, total)


@triton.jit
def shape_changes(out, n):
    total = tl.zeros([2], tl.float32)
    while n > 0:
        total = tl.sum(total)
        n -= 1
    tl.store(out, tl.sum(total))


@triton.jit
def kind_changes(out, n):
    total = None
    for i in range(n):
        total = i
    tl.store(out, total)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (type_changes, "Loop-carried variable total has initial type"),
        (shape_changes, "Loop-carried variable total has initial type"),
        (kind_changes, "variable total is not a triton value"),
    ],
)
def test_a_variable_that_changes_its_kind_in_a_loop_is_refused(kernel: Any, text: str) -> None:
    with pytest.raises(CompilationError) as raised:
        kernel[(1,)](torch.zeros(1), 3)
    messages, error = "", raised.value
    while error is not None:
        messages, error = messages + str(error), error.__cause__ or error.__context__
    assert text in messages
