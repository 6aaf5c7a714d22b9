"""Run every known bug both ways and print the table: `python -m regressions`."""

import argparse
import os
import sys
from time import perf_counter

from rich.console import Console
from rich.table import Table

from properties.device import DEVICES
from properties.mutants.trial import Laboratory, LawAbout
from regressions.known_bug import known_bugs


def main() -> int:
    parse = argparse.ArgumentParser(prog="python -m regressions", description=__doc__)
    parse.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    parse.add_argument("--jobs", type=int, default=os.cpu_count(), help="default: one per core")
    chosen = parse.parse_args()
    table = Table(title="Known bugs")
    for column in ("bug", "source", "pinned by", "today", "planted", "seconds"):
        table.add_column(column)
    bugs = known_bugs()
    failures = 0
    with Laboratory("ours", chosen.device, chosen.jobs) as laboratory:
        started = perf_counter()
        for name, bug in bugs.items():
            today = laboratory.submit(bug.pinned).result()
            planted = laboratory.submit(bug.pinned, bug.planted).result()
            law = bug.pinned.law if isinstance(bug.pinned, LawAbout) else bug.pinned.node
            good = today.caught_by is None and planted.caught_by is not None
            failures += not good
            table.add_row(
                name,
                bug.source,
                law,
                "passes" if today.caught_by is None else f"fails ({today.caught_by})",
                f"caught ({planted.caught_by})" if planted.caught_by else "missed",
                f"{perf_counter() - started:.1f}",
                style="" if good else "bold red",
            )
            started = perf_counter()
    console = Console()
    console.print(table)
    console.print(f"{len(bugs) - failures} of {len(bugs)} known bugs pass today and are caught")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
