"""Run every known bug both ways and print the table: `python -m regressions`."""

import argparse
import os
import sys
from time import perf_counter

from rich.console import Console
from rich.table import Table

from properties.device import DEVICES
from properties.mutants.trial import Laboratory, LawAbout, Outcome
from regressions.known_bug import known_bugs


def main() -> int:
    parse = argparse.ArgumentParser(prog="python -m regressions", description=__doc__)
    parse.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    parse.add_argument("--jobs", type=int, default=os.cpu_count(), help="default: one per core")
    chosen = parse.parse_args()
    table = Table(title="Known bugs")
    for column in ("bug", "source", "pinned by", "today", "planted", "seconds"):
        table.add_column(column, overflow="fold")
    bugs = known_bugs()
    failures = 0
    with Laboratory("ours", chosen.device, chosen.jobs) as laboratory:
        started = perf_counter()
        # All at once, so that every process has work; the rows come in order.
        trials = {
            name: (
                laboratory.submit(bug.pinned),
                laboratory.submit(bug.pinned, bug.planted) if bug.shows_on(chosen.device) else None,
            )
            for name, bug in bugs.items()
        }
        for name, (today, planted) in trials.items():
            bug = bugs[name]
            now, then = today.result(), planted.result() if planted else None
            good = now.caught_by is None and (then is None or then.caught_by is not None)
            failures += not good
            table.add_row(
                name,
                bug.source,
                bug.pinned.law if isinstance(bug.pinned, LawAbout) else bug.pinned.node,
                f"fails ({now.caught_by})" if now.caught_by else "passes",
                _planted(then, bug.only_on),
                f"{perf_counter() - started:.1f}",
                style="" if good else "bold red",
            )
            started = perf_counter()
    console = Console()
    console.print(table)
    console.print(f"{len(bugs) - failures} of {len(bugs)} known bugs pass today and are caught")
    return 1 if failures else 0


def _planted(outcome: Outcome | None, only_on: str | None) -> str:
    if outcome is None:
        return f"shows on {only_on} only"
    return f"caught ({outcome.caught_by})" if outcome.caught_by else "missed"


if __name__ == "__main__":
    sys.exit(main())
