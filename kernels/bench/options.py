"""The options of the command line."""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kernels.bench.baselines import KINDS, available
from kernels.bench.groups import Group
from kernels.bench.problems import PROBLEMS
from kernels.bench.shapes import DECODE, PRESETS, Shape

ABOUT = """\
Times are medians of CUDA events over whole calls, after warm-up, with the L2 cache flushed before
each; beside them the 20th and 80th percentile. A call that ends sooner on the GPU than Python takes
to launch it is timed by Python's pace, unless --graph takes Python out. "adds" is the memory that a
call needs at its peak beyond its inputs. "first" is a first call by the clock on the wall, kernels
compiled within it, inputs made and Python's modules imported before.

In each group stand those of others first, on the same tensors, then our modes. "/fla" and "/torch"
are the time over that of the fastest of fla's modes and of PyTorch's ways: below 1 is faster. fla
refuses some backward passes on Hopper under Triton 3.4 to 3.7.0, which miscompile them;
"unguarded" has them run anyway: a time to compare with, whatever the gradients are.

"floor" is how much of the time cannot be saved: what the bytes take at the pace of a copy of 1 GiB,
or for attention, if that is longer, its operations at the pace of a large product of matrices in
bfloat16; both are measured in the same run. GB/s counts every input, output and gradient once for
each pass that needs it, TFLOP/s the multiplications and additions of the definition (for attention
of the pairs that are seen, for linear ops of the recurrence): the work of the problem, not of a
kernel. Gates are float32, attention is causal.

Others' kernels choose among their configs in the first call: here they time each for 20 ms, instead
of 100, and --warm compiles them in parallel before. It times nothing, and choices are made after it
by the process that measures.

Rows are printed, and written to the file of --json, as they are measured. The status is 1 if a mode
of ours failed or something was left out; one that refuses a shape has not failed.
"""
DTYPES = ("bfloat16", "float16", "float32")


def parser() -> argparse.ArgumentParser:
    """The options of `python -m kernels.bench`."""
    parse = argparse.ArgumentParser(
        prog="python -m kernels.bench",
        usage="%(prog)s [options]",
        description="Time the kernels on a GPU, each beside those of others in the same run.",
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parse.add_argument_group("what is measured"))
    _add_how(parse.add_argument_group("how"))
    return parse


def _add_what(group: argparse._ArgumentGroup) -> None:
    every = [*sorted({mode for problem in PROBLEMS.values() for mode in problem.modes}), "auto"]
    group.add_argument(
        "--op", nargs="+", action="extend", choices=list(PROBLEMS), metavar="OP",
        help=f"only these of {', '.join(PROBLEMS)}",
    )  # fmt: skip
    group.add_argument(
        "--mode", nargs="+", action="extend", choices=every, metavar="MODE",
        help=f"of ours only these of {', '.join(every)} (default: all but auto)",
    )  # fmt: skip
    group.add_argument(
        "--against", type=_kinds, default=available(), metavar="KIND,...",
        help=f"whose to time besides: {', '.join(KINDS)}, or none (default: what is installed)",
    )  # fmt: skip
    group.add_argument(
        "--shape", nargs="+", action="extend", type=Shape.parse, metavar="B,T,H,K,V",
        help="batch, tokens, heads, head dim of queries and keys (and of what is rotated), head "
        "dim of values",
    )  # fmt: skip
    presets = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
    group.add_argument(
        "--preset", nargs="+", action="extend", choices=list(PRESETS), metavar="NAME",
        help=f"sets of shapes. {presets} (default: usual, where no --shape is given)",
    )  # fmt: skip
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--packed", dest="form", action="store_const", const="packed", default="dense",
        help="the same tokens as B sequences of ragged lengths behind cu_seqlens",
    )  # fmt: skip
    batches = ", ".join(str(shape.B) for shape in DECODE)
    form.add_argument(
        "--decode", dest="form", action="store_const", const="decode",
        help="one token after a state, with the state returned, in fused_recurrent modes; shapes "
        f"have T=1 (default: B of {batches} and 16 heads of 128)",
    )  # fmt: skip
    group.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0], help="of the inputs (default: %(default)s)"
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--forward", dest="passes", action="store_const", const=(False,), default=(False, True),
        help="only the forward pass (default: that, and forward and backward together)",
    )  # fmt: skip
    which.add_argument(
        "--backward", dest="passes", action="store_const", const=(True,),
        help="only forward and backward together",
    )  # fmt: skip


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--warm", nargs="?", type=positive, const=os.cpu_count(), metavar="JOBS",
        help="compile everything first, in so many processes (by default one for each core)",
    )  # fmt: skip
    group.add_argument(
        "--first-calls", nargs="?", type=_first, const=("ours",), default=(), metavar="KIND,...",
        help="time a first call of each of these as well, each in a fresh process that finds "
        f"nothing compiled: ours (by default), {', '.join(KINDS)}",
    )  # fmt: skip
    group.add_argument(
        "--graph", action="store_true",
        help="time CUDA graphs of the calls, without the pace of Python",
    )  # fmt: skip
    group.add_argument(
        "--rep", type=positive, default=200, metavar="MS",
        help="repeat each call for about so many milliseconds (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--budget", type=positive, metavar="SECONDS",
        help="begin no group after so many seconds, and say what was left out; --warm ends at half "
        "of them, and what was compiled by then is measured first",
    )  # fmt: skip
    group.add_argument(
        "--json", type=file, metavar="FILE",
        help="write all numbers to FILE; `python -m kernels.bench.report FILE` makes a document",
    )  # fmt: skip


def _kinds(text: str) -> tuple[str, ...]:
    kinds = () if text == "none" else _some_of(KINDS, text)
    for kind in kinds:
        if kind not in available():
            raise argparse.ArgumentTypeError(f"{kind} cannot be imported here")
    return kinds


def _first(text: str) -> tuple[str, ...]:
    return _some_of(("ours", *KINDS), text)


def _some_of(kinds: Sequence[str], text: str) -> tuple[str, ...]:
    for kind in text.split(","):
        if kind not in kinds:
            raise argparse.ArgumentTypeError(f"{kind!r}, expected some of {', '.join(kinds)}")
    return tuple(text.split(","))


def file(text: str) -> Path:
    """The argument of an option: a file to write."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a file in a directory that exists")
    return path


def positive(text: str) -> int:
    """The argument of an option: a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number above 0")
    return int(text)


def groups(chosen: argparse.Namespace) -> list[Group]:
    """The measurements that the command line asks for, in the order of ops and shapes.

    Raises:
        ValueError: nothing is what it asks for, or a step of decoding has more than one token.
    """
    wanted = {
        op: tuple(mode for mode in chosen.mode or PROBLEMS[op].modes if _has(op, mode))
        for op in chosen.op or PROBLEMS
    }
    if not any(wanted.values()):
        raise ValueError(
            f"--mode: {' '.join(chosen.mode)}, expected a mode of {' or '.join(wanted)}"
        )
    found = [
        group
        for op, of_op in wanted.items()
        for shape in _shapes(chosen, op)
        for group in _of(chosen, op, of_op, shape)
    ]
    if not found:
        raise ValueError(f"--op: {' '.join(wanted)}, expected an op with problems of these shapes")
    return found


def _has(op: str, mode: str) -> bool:
    return mode in PROBLEMS[op].modes or (mode == "auto" and op != "cache_append")


def _shapes(chosen: argparse.Namespace, op: str) -> list[Shape]:
    """The shapes of an op, each once."""
    shapes = list(chosen.shape or ())
    names = chosen.preset or ()
    if not shapes and not names:
        if chosen.form == "decode":
            return list(DECODE)
        names = ("usual",)
    for preset in map(PRESETS.get, names):
        if not preset.ops or op in preset.ops:
            shapes += preset.shapes
    for shape in shapes:
        if chosen.form == "decode" and shape.T != 1:
            raise ValueError(f"--decode: T is {shape.T} in {shape}, expected 1")
    return list(dict.fromkeys(replace(shape, form=chosen.form) for shape in shapes))


def _of(
    chosen: argparse.Namespace, op: str, modes: tuple[str, ...], shape: Shape
) -> Iterator[Group]:
    problem = PROBLEMS[op]
    if shape.form == "decode":
        modes = tuple(mode for mode in modes if mode == "fused_recurrent")
    if not modes or shape.form not in problem.forms:
        return
    for backward in chosen.passes:
        if not backward or not (problem.forward_only or shape.form == "decode"):
            dtype = getattr(torch, chosen.dtype)
            yield Group(op, shape, dtype, backward, modes, chosen.against)
