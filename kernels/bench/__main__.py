"""Time the kernels on a GPU, each beside those of others in the same run."""

import argparse
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import gmtime, monotonic, strftime
from typing import Any

import torch
import triton

from kernels.bench.baselines import KINDS, available
from kernels.bench.groups import Group
from kernels.bench.problems import PROBLEMS, modes
from kernels.bench.results import Results
from kernels.bench.shapes import SHAPES, Shape
from kernels.bench.table import Table, reason
from kernels.bench.timing import Ceilings, ceilings, time_call

ABOUT = """\
Times are medians of CUDA events over whole calls, after warm-up, with the L2 cache flushed before
each; beside them the 20th and 80th percentile. A call that ends sooner on the GPU than Python takes
to launch it is timed by Python's pace. "adds" is the memory that a call needs at its peak beyond
its inputs.

In each group stand those of others first, on the same tensors, then our modes. "/fla" and "/torch"
are the time over that of the fastest of fla's modes and of PyTorch's ways: below 1 is faster. fla
refuses some backward passes on Hopper under Triton 3.4 to 3.7.0, which miscompile them;
"unguarded" has them run anyway: a time to compare with, whatever the gradients are.

"floor" is how much of the time cannot be saved: what the bytes take at the pace of a large copy, or
for attention, if that is longer, its operations at the pace of a large product of matrices in
bfloat16. Both are measured in the same run. GB/s counts every input, output and gradient once for
each pass that needs it, TFLOP/s the multiplications and additions of the definition (for attention
of the pairs that are seen, for linear ops of the recurrence): the work of the problem, not of a
kernel. Gates are float32, attention is causal.

Rows are printed, and written to the file of --json, as they are measured. The status is 1 if a mode
of ours failed; one that refuses a shape has not failed.
"""
DTYPES = ("bfloat16", "float16", "float32")


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
        help=f"of ours only these of {', '.join(every)}",
    )  # fmt: skip
    parse.add_argument(
        "--against", type=_kinds, metavar="KIND,...",
        help=f"whose to time besides: {', '.join(KINDS)}, or none (default: what is installed)",
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
        "--rep", type=_positive, default=200, metavar="MS",
        help="repeat each call for about so many milliseconds (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument(
        "--budget", type=_positive, metavar="SECONDS",
        help="begin no group after so many seconds, and say what was left out",
    )  # fmt: skip
    parse.add_argument("--json", type=_file, metavar="FILE", help="write all numbers to FILE")
    return parse


def _kinds(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r}, expected some of {', '.join(KINDS)}")
        if kind not in available():
            raise argparse.ArgumentTypeError(f"{kind} cannot be imported here")
    return kinds


def _file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a file in a directory that exists")
    return path


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number above 0")
    return int(text)


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
    against = available() if chosen.against is None else chosen.against
    return [
        Group(op, shape, getattr(torch, chosen.dtype), backward, of_op, against)
        for op, of_op in wanted.items()
        if of_op
        for shape in chosen.shape
        for backward in chosen.passes
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 if all of ours was measured or refused its shape, 1 if something failed or was left out, 2
        without a GPU, 130 if it was interrupted.
    """
    started = monotonic()
    parse = parser()
    chosen = parse.parse_args(arguments)
    try:
        work = groups(chosen)
    except ValueError as error:
        parse.error(str(error))
    if not torch.cuda.is_available():
        _say("kernels.bench: no GPU that PyTorch can use, so there is nothing to time.")
        return 2
    given = sys.argv[1:] if arguments is None else arguments
    device = torch.device("cuda")
    roof = ceilings(device)
    results = Results(_setting(given, chosen.dtype, roof))
    print(_first_lines(results.setting), flush=True)
    table = Table(work)
    print(table.head(), flush=True)
    try:
        for number, group in enumerate(work, 1):
            results.left_out = [str(left) for left in work[number - 1 :]]
            if chosen.budget is not None and monotonic() - started > chosen.budget:
                break
            _say(f"[{number}/{len(work)}] {group}")
            timing_of = partial(time_call, milliseconds=chosen.rep)
            for row in group.rows(device, timing_of, roof):
                results.rows.append(row)
                print(table.line(row), flush=True)
                if chosen.json is not None:
                    results.write(chosen.json)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        else:
            results.left_out = []
    except KeyboardInterrupt:
        _finish(results, chosen.json, "interrupted")
        return 130
    except torch.AcceleratorError as error:
        return _finish(results, chosen.json, f"the GPU is lost: {error}")
    return _finish(results, chosen.json, "no time was left")


def _finish(results: Results, path: Path | None, why: str) -> int:
    """Say what was not measured, and write it down; 1 if that is a failure."""
    failed = [row for row in results.rows if row.error and not row.refused]
    for row in failed:
        _say(f"{' '.join(row.group)} {row.name} {reason(row)}")
    if results.left_out:
        _say(f"{why}; left out: {', '.join(results.left_out)}")
    if path is not None:
        results.write(path)
    return int(any(row.kind == "ours" for row in failed) or bool(results.left_out))


def _setting(arguments: Sequence[str], dtype: str, roof: Ceilings) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "kernels.bench", *arguments]),
        "date": strftime("%Y-%m-%d", gmtime()),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "fla-core": _version("fla-core"),
        "dtype": dtype,
        "ceilings": asdict(roof),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_lines(setting: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {setting[name]}" for name in ("torch", "triton", "fla-core") if setting[name]
    )
    roof = Ceilings(**setting["ceilings"])
    return (
        f"{setting['device']}, {versions}, {setting['dtype']}\n"
        f"a copy moves {roof.bandwidth / 1e9:.0f} GB/s, "
        f"a product of matrices takes {roof.arithmetic / 1e12:.0f} TFLOP/s\n"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
