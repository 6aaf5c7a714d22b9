"""A second opinion: Triton's interpreter, in a process of its own, where it is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language

import properties.simulator as simulator
from properties.simulator import test_features as kernels

INTEGERS = torch.int32


def features(seed: int) -> dict[str, torch.Tensor]:
    """Outputs of the feature kernels, whatever engine runs them."""
    torch.manual_seed(seed)
    n, outputs = 64, {}

    def add(name: str, kernel: Any, out: torch.Tensor, *args: Any, **settings: Any) -> None:
        outputs[name] = kernels.run(kernel, out, *args, **settings)

    add("for", kernels.loop_with_own_bound, torch.zeros(7, n, dtype=INTEGERS), N=n, grid=7)
    start = torch.randint(1, 60, (9,), dtype=INTEGERS)
    add("while", kernels.collatz, torch.zeros(9, dtype=INTEGERS), start, grid=9)
    add("if", kernels.conditions, torch.zeros(16), torch.randn(8) * 4, 1, grid=8)
    tile = torch.randint(-8, 8, (8, 32)).float()
    add("reduce", kernels.reductions, torch.zeros(10, 8), tile, M=8, N=32)
    signs, steps = torch.tensor([1.0, -1.0])[torch.randint(0, 2, (n,))], torch.randint(-4, 5, (n,))
    for reverse in (False, True):
        out = torch.zeros(4, n)
        add(f"scan {reverse}", kernels.scans, out, signs, steps.float(), N=n, REVERSE=reverse)
    add("sort", kernels.sorting, torch.zeros(2, n), torch.randn(n), N=n, DESCENDING=True)
    add("shapes", kernels.shapes, torch.zeros(7, 128), torch.randn(8, 16), M=8, N=16)
    index = torch.randint(0, 16, (4, 16), dtype=INTEGERS)
    add("gather", kernels.look_up, torch.zeros(4, 16), torch.randn(4, 16), index, M=4, N=16)
    counted = torch.randint(0, 16, (3, n), dtype=INTEGERS)
    out = torch.zeros(3, 16, dtype=INTEGERS)
    add("histogram", kernels.count, out, counted, N=n, BINS=16, grid=3)
    add("random", kernels.random_numbers, torch.zeros(3, 4096), seed, N=1024, grid=4)
    add("walk", kernels.walking, torch.zeros(n), torch.randn(5, n), 5, N=n)
    out = torch.zeros(8, dtype=INTEGERS)
    add("atomic", kernels.atomic_histogram, out, counted.flatten()[:128] % 8, N=n, grid=2)
    for dtype in (torch.float32, torch.float16):
        a, b = torch.randn(2, n).to(dtype)
        name = str(dtype)
        add(f"narrow {name}", kernels.narrow_arithmetic, torch.zeros(6, n, dtype=dtype), a, b, N=n)
        a, b = torch.randn(3, 16, 32).to(dtype), torch.randn(3, 32, 64).to(dtype)
        sizes = {"M": 16, "K": 32, "N": 64, "DTYPE": triton.language.float32, "grid": 3}
        add(f"dot {name}", kernels.products, torch.zeros(3, 16, 64), a, b, **sizes)
    a, b = torch.randn(2, n)
    settings = {"N": n, "SINGLE": True, "LIBRARY": False}
    add("functions", kernels.float_functions, torch.zeros(15, n), a, b, **settings)
    return outputs


def project(seed: int) -> dict[str, torch.Tensor]:
    """Outputs and gradients of the project's kernels at a ragged shape."""
    from kernels.softmax import attention

    torch.manual_seed(seed)
    outputs: dict[str, torch.Tensor] = {}

    def add(name: str, op: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> None:
        leaves = [x.requires_grad_() for x in inputs]
        out = op(*leaves, **options)
        out = out[0] if isinstance(out, tuple) else out
        gradients = torch.autograd.grad((out * torch.randn_like(out)).sum(), leaves)
        outputs[name] = out.detach()
        outputs.update({f"{name} gradient {i}": g for i, g in enumerate(gradients)})

    for dtype in (torch.float32, torch.float16):
        q, k, v = (torch.randn(1, 19, heads, 8).to(dtype) for heads in (2, 1, 1))
        add(f"attention {dtype}", attention, q, k, v, causal=True)
    return outputs


def interpreted(case: str, seed: int, path: Path) -> dict[str, torch.Tensor]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", __spec__.name, case, str(seed), str(path)]
    subprocess.run(command, check=True, cwd=root, env=environment, capture_output=True)
    outputs: dict[str, torch.Tensor] = torch.load(path)
    return outputs


@pytest.mark.skipif(
    triton.__version__.startswith("3.6"), reason="its interpreter does not run on NumPy 2.4"
)
@pytest.mark.parametrize("case", ["features", "project"])
def test_the_interpreter_agrees(case: str, tmp_path: Path) -> None:
    if case == "project":
        pytest.importorskip("kernels.softmax")
    theirs = interpreted(case, 5, tmp_path / "outputs.pt")
    with simulator.simulating():
        ours = CASES[case](5)
    assert ours.keys() == theirs.keys()
    for name, got in ours.items():
        want = theirs[name]
        if not got.is_floating_point():
            assert torch.equal(got, want), name
            continue
        # Both engines round every step alike; sums are in another order, functions of another
        # library, which is a few units in the last place of the largest element.
        unit = torch.finfo(got.dtype).eps * want.double().abs().max()
        worst = (got.double() - want.double()).abs().max()
        assert worst <= 16 * unit, f"{name}: {worst / unit} units"


CASES = {"features": features, "project": project}

if __name__ == "__main__":
    torch.save(CASES[sys.argv[1]](int(sys.argv[2])), sys.argv[3])
