"""Each repair of `properties.interpreter` has a kernel that is wrong without it.

Triton decides at import whether it interprets, so the kernels run in two child processes, with and
without repairs. ``TRITON_INTERPRET=1 python -m properties.selftest.test_interpreter [plain]``
prints the findings of one such process as JSON.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined"

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as upstream

Fault = Callable[[], None]
FAULTS: dict[str, Fault] = {}
# The Triton release without the fault; faults not listed are in every known release.
ENDED_IN = {
    "a_full_bfloat16_block": (3, 9),
    "maximum_ignores_nan": (3, 8),
    "clamp_ignores_nan": (3, 8),
    "a_bool_argument_is_a_flag": (3, 8),
    "a_tensor_bounds_a_loop": (3, 7),
}


def fault(check: Fault) -> Fault:
    FAULTS[check.__name__] = check
    return check


def unary(kernel: Any, x: torch.Tensor, out: torch.dtype, **options: Any) -> torch.Tensor:
    y = torch.full((len(x),), 77, dtype=out)
    kernel[(1,)](x, y, N=len(x), **options)
    return y


def binary(kernel: Any, a: torch.Tensor, b: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    y = torch.full((len(a),), 77, dtype=out)
    kernel[(1,)](a, b, y, N=len(a))
    return y


def bfloat16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


@triton.jit
def arithmetic_kernel(a, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    u = tl.load(a + i)
    v = tl.load(b + i)
    tl.store(y + i, (u + v) * u - v / 2)


@fault
def bfloat16_arithmetic() -> None:
    a, b = torch.randn(2, 16, generator=torch.manual_seed(0)).bfloat16()
    want = (a + b) * a - (b / 2).float()  # Triton divides bfloat16 in float32
    got = binary(arithmetic_kernel, a, b, torch.bfloat16)
    assert torch.equal(got, want.bfloat16())


@triton.jit
def less_kernel(a, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.where(tl.load(a + i) < tl.load(b + i), 1.0, 0.0))


@fault
def bfloat16_comparison() -> None:
    a, b = bfloat16(-2, -1, 3, 0), bfloat16(-1, -2, 4, -1)
    assert binary(less_kernel, a, b, torch.float32).tolist() == [1, 0, 1, 0]


@triton.jit
def mask_kernel(a, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, (tl.load(a + i) < tl.load(b + i)).to(tl.bfloat16))


@fault
def a_comparison_cast_to_bfloat16() -> None:
    a, b = torch.tensor([-2.0, -1.0]), torch.tensor([-1.0, -2.0])
    assert binary(mask_kernel, a, b, torch.bfloat16).tolist() == [1, 0]


@triton.jit
def dot_kernel(a, b, y, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    left = tl.load(a + i)
    if TRANSPOSED:
        left = tl.trans(left)
    tl.store(y + i, tl.dot(left, tl.load(b + i), acc=tl.full((N, N), 1.0, tl.float32)))


@fault
def bfloat16_dot() -> None:
    generator = torch.manual_seed(0)
    a, b = torch.randint(-8, 8, (2, 16, 16), generator=generator).bfloat16()
    for transposed in (False, True):
        y = torch.empty(16, 16)
        dot_kernel[(1,)](a, b, y, N=16, TRANSPOSED=transposed)
        assert torch.equal(y, (a.T if transposed else a).float() @ b.float() + 1)


@triton.jit
def add_combine(a, b):
    return a + b


@triton.jit
def scan_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    block = tl.load(x + i)
    tl.store(y + i, tl.associative_scan(block, 0, add_combine))


@triton.jit
def reduce_kernel(x, y, N: tl.constexpr):
    block = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, N), tl.reduce(block, 0, tl.standard._sum_combine))


@fault
def bfloat16_reduction() -> None:
    x = bfloat16(1, -3, 0.5, 8)
    assert unary(reduce_kernel, x, torch.bfloat16).tolist() == [6.5] * 4


@fault
def bfloat16_scan() -> None:
    x = bfloat16(1, -3, 0.5, 8)
    assert unary(scan_kernel, x, torch.bfloat16).tolist() == [1, -2, -1.5, 6.5]


@triton.jit
def cast_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@triton.jit
def round_kernel(x, y, N: tl.constexpr, MODE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(tl.bfloat16, fp_downcast_rounding=MODE))


def float32_edges() -> torch.Tensor:
    """Ties both ways, carries into the exponent and to infinity, subnormals, and random bits."""
    edges = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1.998, -1.9999, 3.4e38, 1e-40, -3e-41, 0.0, -0.0]
    edges += [float("inf"), -float("inf"), 2.0**-126, 65504.0, 1e-7, 0.1]
    bits = torch.randint(-(2**31), 2**31, (49,), generator=torch.manual_seed(1)).int()
    values = torch.cat([torch.tensor(edges), bits.view(torch.float32)])
    return torch.where(values.isnan(), torch.ones(()), values)


@fault
def float32_rounds_to_nearest_even() -> None:
    x = float32_edges()
    assert torch.equal(unary(cast_kernel, x, torch.bfloat16), x.bfloat16())


@fault
def nan_becomes_a_bfloat16_nan() -> None:
    nan = torch.tensor([0x7F80_0001, 0x7FC0_0000], dtype=torch.int32).view(torch.float32)
    assert unary(cast_kernel, nan, torch.bfloat16).isnan().all()


@fault
def an_explicit_rounding_mode_carries() -> None:
    x = float32_edges()
    truncated = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    assert torch.equal(unary(round_kernel, x, torch.bfloat16, MODE="rtz"), truncated)
    assert torch.equal(unary(round_kernel, x, torch.bfloat16, MODE="rtne"), x.bfloat16())


@fault
def bfloat16_subnormals_widen() -> None:
    x = torch.tensor([1, 2, 0x7F, -0x7FFF, 0], dtype=torch.int16)[[0, 1, 2, 3, 4, 4, 4, 4]]
    x = x.view(torch.bfloat16)
    assert torch.equal(unary(cast_kernel, x, torch.float32), x.float())


@fault
def integers_and_float64_become_bfloat16() -> None:
    for x in (torch.tensor([1, -7, 300, 0]), torch.tensor([0.1, -7.0, 1e30, 0.0]).double()):
        assert torch.equal(unary(cast_kernel, x, torch.bfloat16), x.bfloat16())


@triton.jit
def full_kernel(x, y, N: tl.constexpr):
    tl.store(y + tl.arange(0, N), tl.full((N,), 1.5, tl.bfloat16))


@fault
def a_full_bfloat16_block() -> None:
    assert unary(full_kernel, torch.zeros(4), torch.bfloat16).tolist() == [1.5] * 4


@triton.jit
def maximum_kernel(a, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.maximum(tl.load(a + i), tl.load(b + i)))


@triton.jit
def clamp_kernel(a, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.clamp(tl.load(a + i), tl.load(b + i), 2.0))


@fault
def maximum_ignores_nan() -> None:
    a, b = torch.tensor([float("nan"), 1.0]), torch.tensor([0.5, float("nan")])
    assert binary(maximum_kernel, a, b, torch.float32).tolist() == [0.5, 1.0]


@fault
def clamp_ignores_nan() -> None:
    a, b = torch.tensor([float("nan"), 3.0]), torch.tensor([0.5, 0.5])
    assert binary(clamp_kernel, a, b, torch.float32).tolist() == [0.5, 2.0]


@triton.jit
def loop_kernel(x, y, N: tl.constexpr):
    for i in range(N):
        tl.store(y + i, i.to(tl.float32) + tl.load(x + i))
    for i in tl.range(0, N, num_stages=1):
        tl.store(y + i, tl.load(y + i) + ((i - 3) // 2).to(tl.float32))


@fault
def loop_variables_are_tensors() -> None:
    x = torch.zeros(4)
    # Triton's // rounds toward zero, Python's down.
    assert unary(loop_kernel, x, torch.float32).tolist() == [-1, 0, 2, 3]


@triton.jit
def wide_loop_kernel(x, y, start, N: tl.constexpr):
    for i in range(start, start + N):
        tl.store(y + (i - start), (i * 2).to(tl.float64))


@fault
def loop_variables_take_the_type_of_their_bounds() -> None:
    start = 2**33
    y = unary(wide_loop_kernel, torch.zeros(2), torch.float64, start=start)
    assert y.tolist() == [2.0**34, 2.0**34 + 2]


@triton.jit
def bound_kernel(x, y, N: tl.constexpr):
    total = 0.0
    for _ in range(tl.load(x)):
        total += 1.0
    for _ in tl.range(tl.load(x), 1, -1):
        total += 1.0
    tl.store(y + tl.arange(0, N), total)


@fault
def a_tensor_bounds_a_loop() -> None:
    assert unary(bound_kernel, torch.tensor([3, 0]), torch.float32).tolist() == [5.0, 5.0]


@triton.jit
def scale_kernel(x, y, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, (tl.load(x + i) * scale).to(tl.float32) * scale.to(tl.float32))


@fault
def a_float_argument_is_a_float32_scalar() -> None:
    x, scale = bfloat16(1.0, 3.0), torch.tensor(0.1)
    got = unary(scale_kernel, x, torch.float32, scale=0.1)
    assert torch.equal(got, x.float() * scale * scale)


@triton.jit
def flag_kernel(x, y, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.where(flag, tl.load(x + i), 0.0))


@fault
def a_bool_argument_is_a_flag() -> None:
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(unary(flag_kernel, x, torch.float32, flag=True), x)
    assert torch.equal(unary(flag_kernel, x, torch.float32, flag=False), 0 * x)


TWO = tl.constexpr(2)


@triton.jit
def constant_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    x_tile = tl.load(x + i)
    small = TWO > x_tile  # noqa: SIM300
    tl.store(y + i, (TWO - TWO / x_tile) * small.to(tl.float32))


@fault
def a_constant_stands_to_the_left_of_a_tensor() -> None:
    x = torch.tensor([0.5, 1.0, 4.0, -1.0])
    assert unary(constant_kernel, x, torch.float32).tolist() == [-2.0, 0.0, 0.0, 4.0]


def keep_odd(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["ADDEND"] % 2]


@triton.autotune(
    [triton.Config({"ADDEND": addend}) for addend in (4, 5, 7)],
    key=["N"],
    prune_configs_by={"early_config_prune": keep_odd},
)
@triton.jit
def tuned_kernel(x, y, N: tl.constexpr, ADDEND: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) + ADDEND)


@fault
def autotune_takes_the_first_unpruned_configuration() -> None:
    assert unary(tuned_kernel, torch.zeros(2), torch.float32).tolist() == [5.0, 5.0]
    assert len(tuned_kernel.configs) == 3


@triton.jit
def difference_kernel(x, y, N: tl.constexpr):
    x_tile = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, N), x_tile - x_tile)


@fault
def a_nan_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert unary(difference_kernel, torch.full((2,), torch.inf), torch.float32).isnan().all()


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def calling_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, doubled(doubled(tl.load(x + i))))


@fault
def calls_of_a_function_replace_the_language_once() -> None:
    with patch.object(upstream, "_patch_lang_tensor", wraps=upstream._patch_lang_tensor) as patched:
        y = unary(calling_kernel, torch.tensor([1.0, 2.0]), torch.float32)
    assert y.tolist() == [4, 8]
    assert patched.call_count == 1


def run_faults(repaired: bool) -> dict[str, str]:
    """Fault → its error, or an empty text."""
    if repaired:
        from properties import interpreter

        interpreter.install()
        interpreter.install()
    outcome = {}
    for name, check in FAULTS.items():
        try:
            check()
            outcome[name] = ""
        except Exception:
            outcome[name] = traceback.format_exc()
    return outcome


def run_late() -> dict[str, str]:
    """Run a kernel that calls Triton's library, which was imported before the interpreter was
    chosen.
    """
    from properties.device import activate

    activate("interpreter")

    @triton.jit
    def kernel(out):
        tl.store(out, tl.sum(tl.zeros([4], tl.float32) + 2))

    out = torch.zeros(1)
    kernel[(1,)](out)
    return {"late": str(out.item())}


def run_in_child(*arguments: str, interpret: str = "1") -> dict[str, str]:
    command = [sys.executable, "-m", "properties.selftest.test_interpreter", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, str] = json.loads(done.stdout)
    return outcome


@pytest.fixture(scope="module")
def repaired() -> dict[str, str]:
    return run_in_child()


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    return run_in_child("plain")


@pytest.mark.parametrize("name", FAULTS)
def test_the_repaired_interpreter_agrees_with_a_gpu(name: str, repaired: dict[str, str]) -> None:
    assert repaired[name] == ""


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_there_without_the_repair(name: str, plain: dict[str, str]) -> None:
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    ended = version >= ENDED_IN.get(name, (99,))
    if name == "a_tensor_bounds_a_loop" and np.lib.NumpyVersion(np.__version__) < "2.4.0":
        ended = True
    message = f"Triton {triton.__version__} has repaired this itself: note it in ENDED_IN"
    assert ended == (plain[name] == ""), plain[name] or message


def test_the_interpreter_may_be_chosen_after_triton_was_imported() -> None:
    assert run_in_child("late", interpret="0") == {"late": "8.0"}


if __name__ == "__main__":
    late = "late" in sys.argv
    outcome = run_late() if late else run_faults(repaired="plain" not in sys.argv)
    print(json.dumps(outcome, indent=1))
