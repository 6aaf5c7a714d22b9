"""Run known bugs both ways, as the code stands and with the bug planted, and print a table."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from properties.arguments import count
from properties.device import DEVICES, activate
from properties.planting.trial import LawAbout, Outcome, TrialPool
from properties.targets import load
from regressions.known_bug import KnownBug, bugs_in, known_bugs


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m regressions",
        description=__doc__,
        epilog="Exit code: 0 all hold as the code stands and are caught when planted, 1 some are "
        "not, 2 bad arguments, 130 stopped by Ctrl-C.",
    )
    parse.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only bugs whose name starts so: cache, position.offset (default: all)",
    )
    parse.add_argument(
        "--module", metavar="NAME", help="run the bugs of this module or package of yours instead"
    )
    parse.add_argument(
        "--target",
        default="ours",
        metavar="NAME",
        help="with --module, whose kernels: package.module:attribute",
    )
    parse.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    parse.add_argument(
        "--jobs", type=count, default=os.cpu_count(), help="processes (default: one per core)"
    )
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    parse = parser()
    chosen = parse.parse_args(arguments)
    wanted = tuple(chosen.names) or ("",)
    try:
        if chosen.target != "ours" and not chosen.module:
            raise ValueError("--target: expected with --module, which says whose bugs are run")
        device = activate(chosen.device)
        every = bugs_in(chosen.module) if chosen.module else known_bugs()
        if chosen.target != "ours":
            load(chosen.target, device)
        for start in wanted:
            if not any(name.startswith(start) for name in every):
                raise ValueError(f"NAME: {start!r}, expected the start of a known bug's name")
    except ValueError as error:
        parse.error(str(error))
    bugs = {name: bug for name, bug in every.items() if name.startswith(wanted)}
    started = monotonic()
    try:
        results = run_both_ways(bugs, chosen.device, chosen.jobs, chosen.target)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped by Ctrl-C", highlight=False)
        return 130
    return report(bugs, results, monotonic() - started)


@dataclass(frozen=True)
class BothRuns:
    """The results of both runs of a bug; `trouble` is empty if they are as expected."""

    seconds: float = 0.0
    caught_by: str | None = None
    trouble: str = ""
    report: str = ""


def run_both_ways(
    bugs: Mapping[str, KnownBug], device: str, jobs: int, target: str
) -> dict[str, BothRuns]:
    """Run bugs both ways, in as many processes as there are jobs."""
    with TrialPool(target, device, jobs) as pool:
        # A case that pins several bugs runs once on the code as it stands.
        today = cache(pool.submit)
        trials = {
            name: (
                today(bug.pinned),
                pool.submit(bug.pinned, bug.planted) if bug.shows_on(device) else None,
            )
            for name, bug in bugs.items()
        }
        _wait({future for pair in trials.values() for future in pair if future is not None})
        return {name: _both_runs(*pair) for name, pair in trials.items()}


def _wait(futures: Iterable[Future[Outcome]]) -> None:
    """Until all are done; on a terminal, show how many are."""
    console = Console(stderr=True)
    shown = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *shown, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        futures = list(futures)
        for _ in progress.track(as_completed(futures), total=len(futures)):
            pass


def _both_runs(today: Future[Outcome], planted: Future[Outcome] | None) -> BothRuns:
    try:
        now = today.result()
        then = planted.result() if planted else None
    except Exception as error:
        # Not the law's: the edit does not apply, the test was skipped, the process ended.
        return BothRuns(trouble=f"could not be tried: {error}")
    seconds = now.seconds + (then.seconds if then else 0.0)
    if now.caught_by is not None:
        return BothRuns(seconds, trouble="does not hold as the code stands", report=now.report)
    if then is None:
        return BothRuns(seconds)
    missed = "" if then.caught_by else "is not caught when it is planted"
    return BothRuns(seconds, then.caught_by, missed)


def report(bugs: Mapping[str, KnownBug], results: Mapping[str, BothRuns], seconds: float) -> int:
    """Print what came of all bugs, and return the exit code."""
    troubles = {name: result for name, result in results.items() if result.trouble}
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"{len(bugs) - len(troubles)} of {len(bugs)} known bugs hold as the code stands and are "
        f"caught when planted, in {seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_table(bugs, results))
    for name, result in troubles.items():
        text = f"\n{name} {result.trouble}\n{result.report}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 1 if troubles else 0


def _table(bugs: Mapping[str, KnownBug], results: Mapping[str, BothRuns]) -> Table:
    table = Table()
    table.add_column("family", no_wrap=True)
    for column in ("bug", "source", "law"):
        table.add_column(column, overflow="fold")
    table.add_column("seconds", justify="right", no_wrap=True)
    for family, names in groupby(bugs, lambda name: name.partition(".")[0]):
        table.add_section()
        shown = family
        for name in names:
            bug, result = bugs[name], results[name]
            table.add_row(
                shown,
                name.partition(".")[2].replace("_", " "),
                bug.source,
                _law(bug, result.caught_by),
                f"{result.seconds:.1f}",
                style="bold red" if result.trouble else "",
            )
            shown = ""
    return table


def _law(bug: KnownBug, caught_by: str | None) -> str:
    """The law, or what the test says in its name; and what else there is to say of it."""
    if isinstance(bug.pinned, LawAbout):
        law = bug.pinned.law
        note = caught_by if caught_by != law else None
    else:
        law = bug.pinned.node.partition("::")[2].removeprefix("test_")
        note = None
    if bug.only_on and caught_by is None:
        note = f"shows on {bug.only_on} only"
    return law.replace("_", " ") + (f" ({note})" if note else "")


if __name__ == "__main__":
    sys.exit(main())
