"""Search for tiles on a GPU. Each candidate is checked against the oracle, then timed."""

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton

from kernels import tiles
from kernels.bench.options import file, positive
from kernels.tiles import Entry, Tile
from properties.aot.worker import CompilerProcess
from properties.files import reading_record, told_unwritten, write_atomically
from properties.tune import trial
from properties.tune.grids import STAGES, Stage
from properties.tune.search import Best, Candidate, Search
from properties.tune.trial import Problem, TrialResult

ABOUT = """\
A candidate is an entry of the tile table with another tile for some of its kernels. It is first
compiled, in processes that share Triton's disk cache. It must then obey the differential law,
forward and all gradients, on one larger case and a few drawn ones. Last it is timed: the median of
CUDA events after warm-up, for the forward pass, or for forward and backward together. "of today's"
is its time over that of the table's current entry in the same run; below 1 is faster.

Kernels are searched one after another, the entry's own tile first, each with the best of those
before. The best is the fastest that also compiles with every option and without spilled registers,
as the tests of entries require.

Rejected candidates are listed with the reason: they do not compile, do not fit, or break the law.
Results are printed, and written to the file of --json, as they come.
"""
DTYPES = ("bfloat16", "float16", "float32")
DIMS = (64, 128)
# Processes that compile the winners of a stage, besides those for the next stage.
_RULES = 4


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m properties.tune",
        usage="%(prog)s [options]",
        description=__doc__,
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ops = list(dict.fromkeys(op for op, _ in STAGES))
    modes = list(dict.fromkeys(mode for _, mode in STAGES))
    names = list(dict.fromkeys(stage.name for stages in STAGES.values() for stage in stages))
    parse.add_argument(
        "--op", nargs="+", action="extend", choices=ops, metavar="OP",
        help=f"only these of {', '.join(ops)}",
    )  # fmt: skip
    parse.add_argument(
        "--mode", nargs="+", action="extend", choices=modes, metavar="MODE",
        help=f"only these of {', '.join(modes)}",
    )  # fmt: skip
    parse.add_argument(
        "--kernel", nargs="+", action="extend", choices=names, metavar="KERNEL",
        help=f"only the tiles of these of {', '.join(names)}; entry is the entry's own tile",
    )  # fmt: skip
    parse.add_argument(
        "--head-dim", nargs="+", type=positive, metavar="D", default=list(DIMS),
        help=f"of keys and values (default: {' '.join(map(str, DIMS))})",
    )  # fmt: skip
    parse.add_argument(
        "--dtype", nargs="+", choices=DTYPES, metavar="DTYPE", default=list(DTYPES[:1]),
        help=f"of the inputs: {', '.join(DTYPES)} (default: {DTYPES[0]})",
    )  # fmt: skip
    parse.add_argument(
        "--size", type=_size, metavar="B,T,C", default="8,4096,2048",
        help="batch, tokens and channels of what is timed, C / D heads (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument(
        "--chunk", type=positive, metavar="TOKENS",
        help="search only entries with this chunk length, or this many queries a program, even if "
        "they are slower than today's",
    )  # fmt: skip
    parse.add_argument(
        "--cases", type=_number, default=2, metavar="N",
        help="drawn cases to check a candidate on, each compiled separately (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument(
        "--rep", type=positive, default=100, metavar="MS",
        help="repeat each call for about this many milliseconds (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument(
        "--jobs", type=positive, default=_cores(), metavar="N",
        help="processes that compile (default: %(default)s)",
    )  # fmt: skip
    parse.add_argument(
        "--budget", type=positive, metavar="SECONDS",
        help="start no candidate after this many seconds; the winners so far then compile with "
        "every option, which takes up to a minute more",
    )  # fmt: skip
    parse.add_argument(
        "--json", type=file, metavar="FILE",
        help="write all results to FILE, and reuse those that it has",
    )  # fmt: skip
    return parse


def _cores() -> int:
    """This process's cores, less two for the timing process; a container may report far more."""
    return max(1, min(len(os.sched_getaffinity(0)), 16) - 2)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number")
    return int(text)


def _size(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r}, expected three numbers, such as 8,4096,2048")
    return tuple(map(positive, sizes))


def problems(chosen: argparse.Namespace) -> list[Problem]:
    """The problems of the command line.

    Raises:
        ValueError: no selected op has a selected mode and kernel.
    """
    batch, tokens, channels = chosen.size
    selected = [
        Problem(op, mode, dim, dtype, batch, tokens, channels, chosen.chunk, chosen.cases)
        for (op, mode), stages in STAGES.items()
        if (not chosen.op or op in chosen.op)
        and (not chosen.mode or mode in chosen.mode)
        and (not chosen.kernel or any(stage.name in chosen.kernel for stage in stages))
        for dim in chosen.head_dim
        for dtype in chosen.dtype
    ]
    if not selected:
        raise ValueError("--op, --mode, --kernel: no op has all of these, expected one that has")
    return selected


class Workers:
    """Threads with a process each, which is restarted when it dies."""

    def __init__(self, count: int) -> None:
        self._own = threading.local()
        self.pool = ThreadPoolExecutor(count)

    def call(self, function: Callable[..., TrialResult], *given: Any) -> TrialResult:
        """Run `function(*given)` in the process of the calling thread."""
        if not hasattr(self._own, "worker"):
            self._own.worker = CompilerProcess()
        try:
            result: TrialResult = self._own.worker.call(function, *given)
        except RuntimeError:
            return TrialResult(wrong="it took its process with it")
        except Exception as error:
            return TrialResult(wrong=f"{type(error).__name__}: {error}".splitlines()[0])
        return result


class Record:
    """All results, in a file that is replaced atomically.

    Args:
        path: the file, which may have results of an earlier run.
        setting: results are comparable only within one setting.

    Raises:
        ValueError: the file cannot be read, or has other contents or results of another setting.
    """

    def __init__(self, path: Path | None, setting: dict[str, Any]) -> None:
        self.path = path
        self.setting: dict[str, Any] = json.loads(json.dumps(setting))
        self.candidates: dict[str, dict[str, Any]] = {}
        self.best: dict[str, dict[str, Any]] = {}
        self.unwritten: dict[str, str] = {}
        if path is None or not path.exists():
            return
        with reading_record(path, "--json"):
            earlier = json.loads(path.read_text())
            found = {name: earlier[name] for name in self.setting}
            self.candidates = {_identity(plain): plain for plain in earlier["candidates"]}
            self.best = {_identity(plain, "tiles"): plain for plain in earlier["best"]}
        for name, value in self.setting.items():
            if found[name] != value:
                raise ValueError(
                    f"--json: {path}, of another {name}, expected {value!r} or no file"
                )

    def result(self, problem: Problem, stage: Stage, entry: Entry) -> TrialResult | None:
        known = self.candidates.get(_identity(_plain(problem, stage.name, entry)))
        return None if known is None else TrialResult(known["wrong"], tuple(known["milliseconds"]))

    def add(self, found: Candidate | Best) -> None:
        plain = _plain(found.problem, found.kernel, found.entry) | {"ratio": found.ratio}
        if isinstance(found, Best):
            ruled_out = {in_words(tile): why for tile, why in found.ruled_out}
            self.best[_identity(plain, "tiles")] = {**plain, "ruled_out": ruled_out}
        else:
            self.candidates[_identity(plain)] = {
                **plain,
                "tile": in_words(found.tile),
                "today": found.today,
                "milliseconds": found.result.times,
                "wrong": found.result.wrong,
            }
        if self.path is not None:
            known = {"candidates": [*self.candidates.values()], "best": [*self.best.values()]}
            text = json.dumps({**self.setting, **known}, indent=1)
            with told_unwritten("--json", self.unwritten):
                write_atomically(self.path, f"{text}\n")


def _plain(problem: Problem, kernel: str, entry: Entry) -> dict[str, Any]:
    tiles_of = {"entry": entry, **entry.kernels}
    words = {name: in_words(tile) for name, tile in tiles_of.items()}
    return {**asdict(problem), "kernel": kernel, "tiles": words}


def _identity(plain: dict[str, Any], *without: str) -> str:
    names = ("op", "mode", "dim", "dtype", "chunk", "drawn", "kernel", "tiles")
    return json.dumps({name: plain[name] for name in names if name not in without})


def _digest() -> str:
    """A digest of the kernels: results hold for these only."""
    folder = Path(tiles.__file__).parent
    own = [folder / "bench", folder / "tune"]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.name != "tiles.py" and not any(path.is_relative_to(each) for each in own):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def in_words(tile: Tile) -> str:
    """A tile as the table writes it, without defaults."""
    named = {"tokens": tile.tokens, "keys": tile.keys, "features": tile.features}
    if tile.features == Tile.features:
        del named["features"]
    named |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return ", ".join(f"{name}={value}" for name, value in named.items())


def as_code(entry: Entry) -> str:
    """An entry to paste into the table; its conditions are still to be added."""
    own = ",\n    ".join(in_words(entry).split(", "))
    kernels = "".join(
        f'        "{name}": Tile({in_words(tile)}),\n' for name, tile in entry.kernels.items()
    )
    kernels = f"    kernels={{\n{kernels}    }},\n" if kernels else ""
    return f"Entry(\n    {own},\n    max_dim={entry.max_dim},\n{kernels})"


def line(found: Candidate) -> str:
    mark = " (today's)" if found.today else ""
    head = f"{found.problem} · {found.kernel}: {in_words(found.tile)}{mark}: "
    if found.result.wrong:
        return head + found.result.wrong
    times = " + ".join(f"{ms:.3f}" for ms in found.result.times)
    ratio = "" if found.ratio is None else f", {found.ratio:.3f} of today's"
    return f"{head}{times} ms{ratio}"


def ranking(best: Best, candidates: Sequence[Candidate]) -> str:
    """The candidates of a stage, the fastest first, then those that cannot be used."""
    of_stage = [o for o in candidates if (o.problem, o.kernel) == (best.problem, best.kernel)]
    why = dict(best.ruled_out)
    timed = sorted((o for o in of_stage if o.result.times), key=lambda o: sum(o.result.times))
    rows = [f"{best.problem} · {best.kernel}, ranked:"]
    for candidate in timed:
        times = "".join(f"{ms:9.3f}" for ms in candidate.result.times)
        ratio = "" if candidate.ratio is None else f"{candidate.ratio:7.3f}"
        notes = [
            *(["today's"] if candidate.today else []),
            *(["best"] if candidate.entry == best.entry else []),
            *([why[candidate.tile]] if candidate.tile in why else []),
        ]
        rows.append(f"{times}{ratio}  {in_words(candidate.tile)}  {'; '.join(notes)}".rstrip())
    refused = [o for o in of_stage if o.result.wrong]
    rows += [f"  refused  {in_words(o.tile)}: {o.result.wrong}" for o in refused]
    if not best.taken:
        rows.append("  none can be taken: the entry stays as it was")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 if all was tried, 1 if the budget ended it or --json was not written, 2 without a GPU.
    """
    begun = time.monotonic()
    parse = parser()
    chosen = parse.parse_args(arguments)
    try:
        wanted = problems(chosen)
    except ValueError as error:
        parse.error(str(error))
    if not torch.cuda.is_available():
        print(
            "properties.tune: no GPU that PyTorch can use, so there is nothing to time.",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda")
    try:
        architecture = trial.architecture_of(tiles.architecture(device)).name
        for problem in wanted:
            problem.entry(device)
    except ValueError as error:
        parse.error(str(error))
    setting = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "size": chosen.size,
        "kernels": _digest(),
    }
    try:
        record = Record(chosen.json, setting)
    except ValueError as error:
        parse.error(str(error))
    print(", ".join(f"{name} {value}" for name, value in setting.items()), flush=True)
    until = None if chosen.budget is None else begun + chosen.budget
    return 1 if _search(chosen, wanted, record, device, architecture, until) else 0


def _search(
    chosen: argparse.Namespace,
    wanted: Sequence[Problem],
    record: Record,
    device: torch.device,
    architecture: str,
    until: float | None,
) -> bool:
    """Start the processes and search; return whether something was left out."""
    with TemporaryDirectory() as memory:
        compilers, rulers, judge = Workers(chosen.jobs), Workers(_RULES), Workers(1)

        def compiled(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
            if record.result(problem, stage, entry) is not None:
                return TrialResult()
            return compilers.call(trial.compiled, problem, stage, entry, architecture)

        def judged(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
            known = record.result(problem, stage, entry)
            if known is not None:
                return known
            given = problem, stage, entry, Path(memory), chosen.rep
            return judge.pool.submit(judge.call, trial.judged, *given).result()

        search = Search(
            compilers.pool,
            rulers.pool,
            compiled,
            lambda *given: rulers.call(trial.within_the_rules, *given, architecture),
            judged,
            device,
            until,
        )
        try:
            return follow(search, wanted, chosen.kernel or (), record)
        except KeyboardInterrupt:
            print("properties.tune: ended by Ctrl-C", file=sys.stderr)
            return True
        finally:
            for workers in (compilers, rulers, judge):
                workers.pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()


def follow(
    search: Search, wanted: Sequence[Problem], kernels: Sequence[str], record: Record
) -> bool:
    """Print and record what the search finds; return whether something was left out or not
    written.
    """
    candidates: list[Candidate] = []
    last: dict[Problem, Best] = {}
    for result in search.run(wanted, kernels):
        record.add(result)
        if isinstance(result, Best):
            last[result.problem] = result
            print(f"\n{ranking(result, candidates)}\n", flush=True)
        else:
            candidates.append(result)
            print(line(result), flush=True)
    for problem, best in last.items():
        stays = best.entry == problem.entry(search.device)
        what = "today's entry is the best" if stays else f"best\n{as_code(best.entry)}"
        print(f"\n{problem}: {what}", flush=True)
    if search.ended:
        print("\nproperties.tune: the budget ended the search; not all was tried", file=sys.stderr)
    for why in record.unwritten.values():
        print(f"properties.tune: {why}", file=sys.stderr)
    return search.ended or bool(record.unwritten)


if __name__ == "__main__":
    sys.exit(main())
