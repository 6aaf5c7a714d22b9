"""Time the kernels on a GPU, each beside those of others in the same run."""

import argparse
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import gmtime, monotonic, strftime
from typing import Any

import torch
import triton

from kernels.bench.baselines import import_fla
from kernels.bench.groups import Group, Row
from kernels.bench.options import groups, parser
from kernels.bench.processes import first_call, warm
from kernels.bench.results import Results
from kernels.bench.table import Table, reason
from kernels.bench.timing import Ceilings, ceilings, time_call, tune_briefly


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 if all of ours was measured or refused its shape, 1 if something failed, was left out or
        could not be written, 2 without a GPU or what it is to be compared with, 130 if it was
        interrupted.
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
    try:
        if "fla" in chosen.against:
            import_fla({group.op for group in work})
    except Exception as error:
        _say(f"kernels.bench: fla is here and cannot be imported: {error}")
        return 2
    given = sys.argv[1:] if arguments is None else arguments
    device = torch.device("cuda")
    roof = ceilings(device)
    results = Results(_setting(_told(given), chosen.dtype, roof), left_out=list(map(str, work)))
    print(_first_lines(results.setting), flush=True)
    until = None if chosen.budget is None else started + chosen.budget
    try:
        if chosen.warm is not None:
            # Half of the time is for what is compiled by then.
            half = None if until is None else (monotonic() + until) / 2
            cold = warm(work, device, chosen.warm, _say, half)
            work.sort(key=lambda group: any(unit.concerns(group) for unit in cold))
            results.left_out = list(map(str, work))
        tune_briefly()
        table = Table(work)
        print(table.head(), flush=True)
        for row in _rows(work, chosen, device, roof, until, results):
            print(table.line(row), flush=True)
            results.rows.append(row)
            if chosen.json is not None:
                results.write(chosen.json)
    except KeyboardInterrupt:
        _finish(results, chosen.json, "interrupted")
        return 130
    except torch.AcceleratorError as error:
        return _finish(results, chosen.json, f"the GPU is lost: {error}")
    return _finish(results, chosen.json, "no time was left")


def _rows(
    work: Sequence[Group],
    chosen: argparse.Namespace,
    device: torch.device,
    roof: Ceilings,
    until: float | None,
    results: Results,
) -> Iterator[Row]:
    """The groups to measure, in order; the results know which are left."""
    timing_of = partial(time_call, milliseconds=chosen.rep, graph=chosen.graph)

    def first_of(group: Group, kind: str, mode: str) -> float | None:
        return first_call(group, kind, mode, device) if kind in chosen.first_calls else None

    for number, group in enumerate(work, 1):
        if until is not None and monotonic() > until:
            return
        _say(f"[{number}/{len(work)}] {group}")
        yield from group.rows(device, timing_of, roof, first_of)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        results.left_out = [str(left) for left in work[number:]]


def _finish(results: Results, path: Path | None, why: str) -> int:
    """Say what was not measured, and write it down; 1 if that is a failure."""
    failed = [row for row in results.rows if row.error and not row.refused]
    for row in failed:
        _say(f"{' '.join(row.group)} {row.name} {reason(row)}")
    if results.left_out:
        _say(f"{why}; left out: {', '.join(results.left_out)}")
    if path is not None:
        results.write(path)
        if results.unwritten:
            _say(f"--json not written: {results.unwritten}")
    wrong = any(row.kind == "ours" for row in failed)
    return int(wrong or bool(results.left_out) or bool(results.unwritten))


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


def _told(arguments: Sequence[str]) -> list[str]:
    """The options that change the numbers: all but where they are written."""
    told = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    told.add_argument("--json")
    return told.parse_known_args(arguments)[1]


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
