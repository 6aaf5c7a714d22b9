"""`python -m properties.simulator.bench`: compare the simulator's speed with Triton's interpreter.

Both engines run the same public ops on the same machine, each in its own process, since Triton
chooses its engine at import. Times are of a call's launches, without the op's host code: the best
of several, after one that is not counted.
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
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

Call = Callable[[], object]


def attention_forward(programs: int) -> Call:
    from kernels import attention

    q, k, v = torch.randn(3, 1, 32, programs, 32)
    return lambda: attention(q, k, v, causal=True)


def attention_backward(programs: int) -> Call:
    from kernels import attention

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


def launches_of(call: Call) -> Call:
    """Return a function that repeats the launches of a call with the same arguments."""
    recorded: list[Call] = []
    with ExitStack() as stack:
        for kind in (JITFunction, InterpretedFunction):

            def run(self: Any, *args: Any, _run: Any = kind.run, **settings: Any) -> object:
                recorded.append(partial(_run, self, *args, **settings))
                return _run(self, *args, **settings)

            stack.enter_context(patch.object(kind, "run", run))
        call()
    return lambda: [launch() for launch in recorded]


def milliseconds(call: Call, budget: float) -> float:
    """The best time of several calls after the first."""
    call()
    spent, best = 0.0, float("inf")
    for _ in range(200):
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        spent, best = spent + taken, min(best, taken)
        if spent >= budget:
            break
    return 1e3 * best


def timed_compilation(spent: list[float]) -> None:
    """Record the processor time of each compilation and code generation in milliseconds."""
    from properties.simulator import compilation

    original = compilation.program_of

    def program_of(*args: Any) -> Any:
        start = time.process_time()
        program = original(*args)
        spent.append(1e3 * (time.process_time() - start))
        return program

    compilation.program_of = program_of  # type: ignore[assignment]


def measure(programs: list[int], budget: float, spent: list[float]) -> dict[str, Any]:
    """Per op: times by number of programs, and the longest compilation of one kernel."""
    torch.set_num_threads(1)
    measured = {}
    for name, make in CASES.items():
        spent.clear()
        times = [milliseconds(launches_of(make(count)), budget) for count in programs]
        measured[name] = {"times": times, "compilation": max(spent, default=0.0)}
    return measured


def in_process(engine: str, programs: list[int]) -> dict[str, Any]:
    """The measurements of one engine, in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_SIM_CACHE": cache, "OMP_NUM_THREADS": "1"}
        environment["TRITON_INTERPRET"] = "1" if engine == "interpreter" else "0"
        command = [sys.executable, "-m", "properties.simulator.bench", "--engine", engine]
        command += ["--programs", *map(str, programs)]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def table(programs: list[int]) -> str:
    """A Markdown table: milliseconds of both engines and how many times faster the simulator is."""
    ours, theirs = (in_process(engine, programs) for engine in ("simulator", "interpreter"))
    lines = [
        "| op | programs | simulator, ms | interpreter, ms | ratio | compilation of a kernel, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in ours.items():
        both = zip(programs, row["times"], theirs[name]["times"], strict=True)
        for index, (count, fast, slow) in enumerate(both):
            cold = "" if index else f"{row['compilation']:.0f}"
            lines.append(
                f"| {name} | {count} | {fast:.2f} | {slow:.0f} | {slow / fast:.0f} | {cold} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m properties.simulator.bench",
        description="Compare the simulator's speed with that of Triton's interpreter.",
    )
    text = "programs of the launches that are timed (default: 1 8 64 512)"
    parser.add_argument("--programs", type=int, nargs="+", default=[1, 8, 64, 512], help=text)
    parser.add_argument("--engine", choices=("simulator", "interpreter"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.engine is None:
        print(table(chosen.programs))
        return
    spent: list[float] = []
    if chosen.engine == "simulator":
        from properties.simulator import install

        install()
        timed_compilation(spent)
    budget = 0.5 if chosen.engine == "simulator" else 0.0
    print(json.dumps(measure(chosen.programs, budget, spent)))


if __name__ == "__main__":
    main()
