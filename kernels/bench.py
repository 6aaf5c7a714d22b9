"""Time the kernels on a GPU, each beside a baseline in the same run."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, scaled_dot_product_attention
from triton.runtime.jit import JITFunction

from kernels import (
    attention,
    delta_rule,
    dplr,
    gated_delta_rule,
    gla,
    kda,
    l2norm,
    linear_attn,
    rotary_embedding,
    rotary_tables,
    short_conv,
    simple_gla,
)
from kernels.tiles import TABLE

Tensors = dict[str, Tensor]
Call = Callable[[], tuple[Tensor, ...]]

ABOUT = """\
Times are medians of CUDA events over whole calls, after warm-up, with the L2 cache flushed before
each; beside them the 20th and 80th percentile. A call that ends sooner on the GPU than Python takes
to launch it is timed by Python's pace.

The first call is timed apart, by the clock on the wall, with nothing compiled and Triton's disk
cache empty. "adds" is the memory that the first call needs at its peak beyond its inputs.

"ratio" is the time over that of the baseline, the first row of each group: below 1 is faster. The
baseline of attention (causal) is scaled_dot_product_attention with the backend that PyTorch
chooses, of rotary_embedding a composition of PyTorch operations in the same dtype, of linear ops
the mode that "auto" chooses.

GB/s counts every input, output and gradient once for each pass that needs it, TFLOP/s the
multiplications and additions of the definition (for attention of the pairs that are seen, for
linear ops of the recurrence): the work of the problem, not of a kernel. Gates are float32.
"""
SHAPES = ("8,64,32,64,64", "8,512,32,64,64", "8,4096,32,64,64", "8,4096,16,128,128")
PASSES = {False: "forward", True: "forward+backward"}
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Shape:
    """Batch, tokens, heads, head dim of queries and keys, head dim of values."""

    B: int
    T: int
    H: int
    K: int
    V: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        sizes = text.split(",")
        if len(sizes) != 5 or not all(size.isdecimal() and int(size) for size in sizes):
            raise argparse.ArgumentTypeError(
                f"{text!r}, expected five numbers above 0, B,T,H,K,V, such as {SHAPES[2]}"
            )
        return cls(*map(int, sizes))

    def __str__(self) -> str:
        return f"{self.B},{self.T},{self.H},{self.K},{self.V}"

    @property
    def vectors(self) -> int:
        """How many queries there are."""
        return self.B * self.T * self.H


@dataclass(frozen=True)
class Problem:
    """What is measured of an op.

    Args:
        function: the op; its output is what it returns, or the first of what it returns.
        make: random inputs by name.
        moved: bytes, see `ABOUT`, from the shape, the size of an element, and whether the backward
            pass is included.
        operations: multiplications and additions, from the shape and the same.
        baseline: a name, and a function of the inputs; by default the op in the mode "auto".
        options: further arguments of the op.
        output_like: the input that the output looks like.
        constants: inputs that get no gradient.
    """

    function: Callable[..., Any]
    make: Callable[[Shape, torch.dtype, torch.device], Tensors]
    moved: Callable[[Shape, int, bool], int]
    operations: Callable[[Shape, bool], int]
    baseline: tuple[str, Callable[..., Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    output_like: str = "v"
    constants: tuple[str, ...] = ()


def _queries_keys_values(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    widths = {"q": shape.K, "k": shape.K, "v": shape.V}
    return {
        name: torch.randn(shape.B, shape.T, shape.H, width, dtype=dtype, device=device)
        for name, width in widths.items()
    }


def _gates(*sizes: int, device: torch.device) -> Tensor:
    """Log decays whose memory is some tens of tokens, as trained ones have."""
    return logsigmoid(torch.randn(sizes, dtype=torch.float32, device=device)) / 16


def _gates_of_heads(shape: Shape, device: torch.device) -> Tensor:
    return _gates(shape.B, shape.T, shape.H, device=device)


def _gates_of_keys(shape: Shape, device: torch.device) -> Tensor:
    return _gates(shape.B, shape.T, shape.H, shape.K, device=device)


def _gated(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**_queries_keys_values(shape, dtype, device), "g": _gates_of_keys(shape, device)}


def _gated_heads(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**_queries_keys_values(shape, dtype, device), "g": _gates_of_heads(shape, device)}


def _delta(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With keys of length 1 and strengths from 0 to 1."""
    tensors = _queries_keys_values(shape, dtype, device)
    beta = torch.rand(shape.B, shape.T, shape.H, dtype=torch.float32, device=device)
    return {**tensors, "k": normalize(tensors["k"], dim=-1), "beta": beta}


def _gated_delta(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**_delta(shape, dtype, device), "g": _gates_of_heads(shape, device)}


def _kda(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**_delta(shape, dtype, device), "g": _gates_of_keys(shape, device)}


def _dplr(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With a and b of length 1/2 each."""
    tensors = _queries_keys_values(shape, dtype, device)
    a, b = (normalize(torch.randn_like(tensors["k"]), dim=-1) / 2 for _ in range(2))
    return {**tensors, "a": a, "b": b, "gk": _gates_of_keys(shape, device)}


def _vectors(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {"x": torch.randn(shape.B, shape.T, shape.H, shape.K, dtype=dtype, device=device)}


def _channels(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    x = torch.randn(shape.B, shape.T, shape.H * shape.K, dtype=dtype, device=device)
    return {"x": x, "weight": torch.randn(shape.H * shape.K, 4, dtype=dtype, device=device)}


def _rotary_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    cos, sin = rotary_tables(shape.T, shape.K, dtype=dtype, device=device)
    x = torch.randn(shape.B, shape.T, shape.H, shape.K, dtype=dtype, device=device)
    return {"x": x, "cos": cos, "sin": sin}


def _torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _torch_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos[:, None], sin[:, None]
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def _linear_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """q, k, v, o; then q, k, v, do, dq, dk, dv."""
    width = 2 * shape.K + 2 * shape.V
    if backward:
        width += 4 * shape.K + 3 * shape.V
    return shape.vectors * width * itemsize


def _gated_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """As without gates, and g in float32; then g and dg."""
    gates = (3 if backward else 1) * shape.vectors * shape.K * 4
    return _linear_bytes(shape, itemsize, backward) + gates


def _bytes_with(floats: Callable[[Shape], int], rows: int = 0) -> Callable[..., int]:
    """As linear attention, and for each vector numbers in float32 and rows as long as a key; read,
    then read and their gradients written."""

    def moved(shape: Shape, itemsize: int, backward: bool) -> int:
        extra = 4 * floats(shape) + rows * shape.K * itemsize
        return _linear_bytes(shape, itemsize, backward) + (3 if backward else 1) * (
            shape.vectors * extra
        )

    return moved


def _elementwise_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """x, y; then x, dy, dx."""
    return (5 if backward else 2) * shape.vectors * shape.K * itemsize


def _attention_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """q, k, v, o; then lse, written and read, and q, k, v, o, do, dq, dk, dv."""
    width, lse = 2 * shape.K + 2 * shape.V, 0
    if backward:
        width, lse = width + 4 * shape.K + 4 * shape.V, 2 * 4
    return shape.vectors * (width * itemsize + lse)


def _rotary_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """x, y and the tables; then dy, dx and the tables."""
    once = (2 * shape.vectors + shape.T) * shape.K * itemsize
    return 2 * once if backward else once


def _linear_operations(shape: Shape, backward: bool) -> int:
    """Per element of the state and token: S and o; then S, dS, dq, dk, dv; 2 each."""
    return shape.vectors * shape.K * shape.V * (14 if backward else 4)


def _gated_operations(shape: Shape, backward: bool) -> int:
    """As without gates, and a decay for each S and dS."""
    return shape.vectors * shape.K * shape.V * (17 if backward else 5)


def _delta_operations(shape: Shape, backward: bool) -> int:
    """Per element of the state and token: what it lacks, S and o; then S, dS, and the gradients of
    what it lacks, q, k twice and v."""
    return shape.vectors * shape.K * shape.V * (24 if backward else 7)


def _elementwise_operations(shape: Shape, backward: bool) -> int:
    """Four products and sums per element; as many for each of two gradients."""
    return shape.vectors * shape.K * (24 if backward else 8)


def _attention_operations(shape: Shape, backward: bool) -> int:
    """Per pair: q·k and p·v; then q·k and do·v, and the gradients of q, k and v."""
    pairs = shape.B * shape.H * shape.T * (shape.T + 1) // 2
    width = shape.K + shape.V
    if backward:
        width += 3 * shape.K + 2 * shape.V
    return 2 * pairs * width


def _rotary_operations(shape: Shape, backward: bool) -> int:
    """Four products and two sums for each pair of dims."""
    once = 6 * shape.vectors * (shape.K // 2)
    return 2 * once if backward else once


PROBLEMS = {
    "linear_attn": Problem(
        function=linear_attn,
        make=_queries_keys_values,
        moved=_linear_bytes,
        operations=_linear_operations,
    ),
    "gla": Problem(
        function=gla,
        make=_gated,
        moved=_gated_bytes,
        operations=_gated_operations,
    ),
    "simple_gla": Problem(
        function=simple_gla,
        make=_gated_heads,
        moved=_bytes_with(lambda shape: 1),
        operations=_gated_operations,
    ),
    "delta_rule": Problem(
        function=delta_rule,
        make=_delta,
        moved=_bytes_with(lambda shape: 1),
        operations=_delta_operations,
    ),
    "gated_delta_rule": Problem(
        function=gated_delta_rule,
        make=_gated_delta,
        moved=_bytes_with(lambda shape: 2),
        operations=_delta_operations,
    ),
    "kda": Problem(
        function=kda,
        make=_kda,
        moved=_bytes_with(lambda shape: shape.K + 1),
        operations=_delta_operations,
    ),
    "dplr": Problem(
        function=dplr,
        make=_dplr,
        moved=_bytes_with(lambda shape: shape.K, rows=2),
        operations=_delta_operations,
    ),
    "l2norm": Problem(
        function=l2norm,
        make=_vectors,
        moved=_elementwise_bytes,
        operations=_elementwise_operations,
        output_like="x",
    ),
    "short_conv": Problem(
        function=short_conv,
        make=_channels,
        moved=_elementwise_bytes,
        operations=_elementwise_operations,
        output_like="x",
    ),
    "attention": Problem(
        function=attention,
        make=_queries_keys_values,
        moved=_attention_bytes,
        operations=_attention_operations,
        baseline=("torch SDPA", _torch_attention),
        options={"causal": True},
    ),
    "rotary_embedding": Problem(
        function=rotary_embedding,
        make=_rotary_inputs,
        moved=_rotary_bytes,
        operations=_rotary_operations,
        baseline=("PyTorch", _torch_rotary),
        output_like="x",
        constants=("cos", "sin"),
    ),
}


@dataclass(frozen=True)
class Timing:
    """Of one call: its first time in seconds, then milliseconds; and the bytes that it adds."""

    first: float
    median: float
    low: float
    high: float
    peak: int


@dataclass(frozen=True)
class Row:
    """One line of the table; without a timing it says what went wrong."""

    op: str
    shape: str
    what: str
    mode: str
    timing: Timing | None = None
    ratio: float | None = None
    gigabytes_per_second: float | None = None
    teraflops: float | None = None
    error: str | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        """What the rows that are measured side by side share."""
        return self.op, self.shape, self.what


def measure(call: Call, milliseconds: int) -> Timing:
    """Time a call that runs on the current GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with tempfile.TemporaryDirectory() as nothing:
        _forget_compiled(nothing)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() - before
        median, low, high = triton.testing.do_bench(
            call, rep=milliseconds, quantiles=[0.5, 0.2, 0.8]
        )
    return Timing(first, median, low, high, peak)


def _forget_compiled(cache: str) -> None:
    """Have Triton compile all kernels of this package anew, with `cache` as its disk cache."""
    os.environ["TRITON_CACHE_DIR"] = cache
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "kernels":
            for thing in vars(module).values():
                if isinstance(thing, JITFunction):
                    thing.device_caches.clear()


def modes(op: str) -> list[str]:
    """The modes that the op has kernels for."""
    return [mode for name, mode in TABLE if name == op]


@dataclass(frozen=True)
class Group:
    """What is measured side by side: an op on the same tensors, in several modes."""

    op: str
    shape: Shape
    dtype: torch.dtype
    backward: bool
    modes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op} {self.shape} {PASSES[self.backward]}"

    def calls(self, device: torch.device) -> dict[str, Call]:
        """The baseline first, then each mode, by name.

        A call returns the output, or in the backward pass the gradients of all inputs.
        """
        problem = PROBLEMS[self.op]
        torch.manual_seed(0)
        inputs = problem.make(self.shape, self.dtype, device)
        do = torch.randn_like(inputs[problem.output_like])
        leaves = [x for name, x in inputs.items() if name not in problem.constants]
        for x in leaves:
            x.requires_grad_(self.backward)

        def timed(function: Callable[..., Any]) -> Call:
            def call() -> tuple[Tensor, ...]:
                returned = function(**inputs)
                output = returned[0] if isinstance(returned, tuple) else returned
                return torch.autograd.grad(output, leaves, do) if self.backward else (output,)

            return call

        def in_mode(mode: str) -> Call:
            return timed(partial(problem.function, **problem.options, mode=mode))

        if problem.baseline is None:
            calls = {"auto": in_mode("auto")}
        else:
            name, baseline = problem.baseline
            calls = {name: timed(baseline)}
        return calls | {mode: in_mode(mode) for mode in self.modes}

    def rows(self, device: torch.device, timing_of: Callable[[Call], Timing]) -> Iterator[Row]:
        """A row for the baseline and each mode; one that fails does not stop the others."""
        problem = PROBLEMS[self.op]
        moved = problem.moved(self.shape, self.dtype.itemsize, self.backward)
        operations = problem.operations(self.shape, self.backward)
        row = partial(Row, self.op, str(self.shape), PASSES[self.backward])
        try:
            calls = self.calls(device)
        except Exception as error:
            yield row("inputs", error=_text(error))
            return
        baseline = None
        for index, (mode, call) in enumerate(calls.items()):
            try:
                timing = timing_of(call)
            except Exception as error:
                yield row(mode, error=_text(error))
                continue
            if index == 0:
                baseline = timing.median
            yield row(
                mode,
                timing=timing,
                ratio=None if baseline is None else timing.median / baseline,
                gigabytes_per_second=moved / timing.median / 1e6,
                teraflops=operations / timing.median / 1e9,
            )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()


HEADINGS = (
    "op", "B,T,H,K,V", "pass", "mode",
    "first call, s", "ms", "20% - 80%", "ratio", "GB/s", "TFLOP/s", "adds, MiB",
)  # fmt: skip
_LEFT = 4


def cells(row: Row) -> list[str]:
    """The texts of a row of the table, one for each heading."""
    names = [row.op, row.shape, row.what, row.mode]
    timing = row.timing
    if timing is None:
        return [*names, *("failed" if heading == "ms" else "" for heading in HEADINGS[_LEFT:])]
    return [
        *names,
        f"{timing.first:.2f}",
        f"{timing.median:.3f}",
        f"{timing.low:.3f} - {timing.high:.3f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.gigabytes_per_second:.0f}",
        f"{row.teraflops:.1f}",
        f"{timing.peak / 2**20:.1f}",
    ]


def plain_table(rows: Sequence[Row]) -> str:
    """The table in columns of text, an empty line between groups."""
    lines = [list(HEADINGS), *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]

    def aligned(line: list[str]) -> str:
        padded = (
            text.ljust(width) if column < _LEFT else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    text = [aligned(lines[0])]
    for index, line in enumerate(lines[1:]):
        if index == 0 or rows[index].group != rows[index - 1].group:
            text.append("")
        text.append(aligned(line))
    return "\n".join(text)


def show(rows: Sequence[Row]) -> None:
    """Print the table: by rich on a terminal where there is rich, as plain text elsewhere."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain_table(rows))
        return
    if not sys.stdout.isatty():
        print(plain_table(rows))
        return
    table = Table()
    for column, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if column < _LEFT else "right")
    for row, following in zip_longest(rows, rows[1:]):
        last = following is None or following.group != row.group
        table.add_row(*cells(row), end_section=last)
    Console().print(table)


def groups(chosen: argparse.Namespace) -> list[Group]:
    """What the command line asks for, in the order of ops and shapes.

    Raises:
        ValueError: no op of those asked for has a mode of those asked for.
    """
    wanted = {
        op: tuple(mode for mode in modes(op) if not chosen.mode or mode in chosen.mode)
        for op in chosen.op or PROBLEMS
    }
    if not any(wanted.values()):
        raise ValueError(f"--mode {' '.join(chosen.mode)}: a mode of none of {', '.join(wanted)}")
    return [
        Group(op, shape, getattr(torch, chosen.dtype), backward, of_op)
        for op, of_op in wanted.items()
        if of_op
        for shape in chosen.shape
        for backward in chosen.passes
    ]


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m kernels.bench",
        description=__doc__,
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = sorted({mode for op in PROBLEMS for mode in modes(op)})
    parse.add_argument(
        "--op", nargs="+", action="extend", choices=list(PROBLEMS), metavar="OP",
        help=f"only these of {', '.join(PROBLEMS)}",
    )  # fmt: skip
    parse.add_argument(
        "--mode", nargs="+", action="extend", choices=every, metavar="MODE",
        help=f"only these of {', '.join(every)}, and the baselines",
    )  # fmt: skip
    parse.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0], help="of the inputs (default: %(default)s)"
    )
    parse.add_argument(
        "--shape", nargs="+", type=Shape.parse, metavar="B,T,H,K,V",
        default=[Shape.parse(text) for text in SHAPES],
        help="batch, tokens, heads, head dim of queries and keys (and of what is rotated), head "
        f"dim of values (default: {' '.join(SHAPES)})",
    )  # fmt: skip
    which = parse.add_mutually_exclusive_group()
    which.add_argument(
        "--forward", dest="passes", action="store_const", const=(False,), default=(False, True),
        help="only the forward pass (default: that, and forward and backward together)",
    )  # fmt: skip
    which.add_argument(
        "--backward", dest="passes", action="store_const", const=(True,),
        help="only forward and backward together",
    )  # fmt: skip
    parse.add_argument(
        "--rep", type=int, default=200, metavar="MS",
        help="repeat each call for about so many milliseconds (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all was measured, 1 if something failed, 2 without a GPU."""
    parse = parser()
    chosen = parse.parse_args(arguments)
    try:
        work = groups(chosen)
    except ValueError as error:
        parse.error(str(error))
    if not torch.cuda.is_available():
        print(
            "kernels.bench: no GPU that PyTorch can use, so there is nothing to time.",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda")
    setting = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "dtype": chosen.dtype,
    }
    print(
        f"{setting['device']}, torch {setting['torch']}, triton {setting['triton']}, "
        f"{chosen.dtype}",
        flush=True,
    )
    rows: list[Row] = []
    for number, group in enumerate(work, 1):
        print(f"[{number}/{len(work)}] {group}", file=sys.stderr, flush=True)
        rows += group.rows(device, partial(measure, milliseconds=chosen.rep))
    show(rows)
    failed = [row for row in rows if row.error]
    for row in failed:
        print(f"failed: {' '.join(row.group)} {row.mode}: {row.error}", file=sys.stderr)
    if chosen.json is not None:
        found = {**setting, "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
