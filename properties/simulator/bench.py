"""`python -m properties.simulator.bench`: the simulator beside Triton's interpreter, as a table.

Both engines run the same public ops in the same minutes on the same machine, each in a process of
its own because Triton decides at import which of them it uses. Times are of whole calls, what the
op does on the host included; the best of several calls, after one that is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]


def attention_forward(programs: int) -> Call:
    from kernels.softmax import attention

    q, k, v = torch.randn(3, 1, 32, programs, 32)
    return lambda: attention(q, k, v, causal=True)


def attention_backward(programs: int) -> Call:
    from kernels.softmax import attention

    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 32, programs, 32))
    out, _ = attention(q, k, v, causal=True)
    return lambda: torch.autograd.grad(out, (q, k, v), out, retain_graph=True)


def rotary(programs: int) -> Call:
    from kernels import rotary_embedding, rotary_tables

    x = torch.randn(1, 32 * programs, 1, 64)
    tables = rotary_tables(32 * programs, 64)
    return lambda: rotary_embedding(x, *tables)


CASES: dict[str, Callable[[int], Call]] = {
    "attention, forward": attention_forward,
    "attention, backward": attention_backward,
    "rotary embedding": rotary,
}


def milliseconds(call: Call, budget: float) -> tuple[float, float]:
    """First call and best later call."""
    start = time.perf_counter()
    call()
    first = best = time.perf_counter() - start
    spent, count = 0.0, 0
    while count < 1 or (spent < budget and count < 200):
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        best = min(best, taken) if count else taken
        spent, count = spent + taken, count + 1
    return 1e3 * first, 1e3 * best


def measure(programs: list[int], budget: float) -> dict[str, list[tuple[float, float]]]:
    torch.set_num_threads(1)
    return {name: [milliseconds(make(n), budget) for n in programs] for name, make in CASES.items()}


def in_process(engine: str, programs: list[int]) -> dict[str, list[list[float]]]:
    """The measurements of one engine, in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_SIM_CACHE": cache, "OMP_NUM_THREADS": "1"}
        environment["TRITON_INTERPRET"] = "1" if engine == "interpreter" else "0"
        command = [sys.executable, "-m", "properties.simulator.bench", "--engine", engine]
        command += ["--programs", *map(str, programs)]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    measured: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def table(programs: list[int]) -> str:
    """A Markdown table: milliseconds of both engines and how many times faster the simulator is."""
    ours, theirs = (in_process(engine, programs) for engine in ("simulator", "interpreter"))
    lines = [
        "| op | programs | simulator, ms | interpreter, ms | ratio | first call, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in ours.items():
        for count, (first, fast), (_, slow) in zip(programs, rows, theirs[name], strict=True):
            cold = f"{first:.0f}" if count == programs[0] else ""
            lines.append(
                f"| {name} | {count} | {fast:.2f} | {slow:.0f} | {slow / fast:.0f} | {cold} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m properties.simulator.bench")
    parser.add_argument("--programs", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--engine", choices=("simulator", "interpreter"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.engine is None:
        print(table(chosen.programs))
        return
    if chosen.engine == "simulator":
        from properties.simulator import install

        install()
    print(json.dumps(measure(chosen.programs, 0.5 if chosen.engine == "simulator" else 0.0)))


if __name__ == "__main__":
    main()
