"""What the fuzzer shows while it runs and when it ends."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from rich.table import Table

from properties.fuzz.record import Key, Row
from properties.fuzz.rounds import Finding, Round
from properties.jobs import Job


@dataclass
class Tally:
    """The sum of many rounds."""

    examples: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, outcome: Round) -> None:
        self.examples += outcome.examples
        self.seconds += outcome.seconds
        self.worst = max(self.worst, outcome.worst)
        if outcome.finding is not None:
            self.findings.append(outcome.finding)


class Board:
    """Examples, worst error and findings by (op, law)."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        self.rows: dict[tuple[str, str], Tally] = {(j.op, j.law): Tally() for j in jobs}
        self.started = monotonic()
        self.excused: Counter[str] = Counter()
        self.numbers: dict[tuple[str, str], Tally] = {(j.op, j.dtype): Tally() for j in jobs}

    def add(self, outcome: Round) -> None:
        self.excused.update(outcome.excused)
        self.rows[outcome.job.op, outcome.job.law].add(outcome)
        self.numbers[outcome.job.op, outcome.job.dtype].add(outcome)

    @property
    def examples(self) -> int:
        return sum(tally.examples for tally in self.rows.values())

    @property
    def findings(self) -> list[Finding]:
        return [finding for tally in self.rows.values() for finding in tally.findings]

    def summary(self) -> str:
        elapsed = monotonic() - self.started
        found = len(self.findings)
        return (
            f"{found or 'no'} finding{'' if found == 1 else 's'} in {self.examples} examples, "
            f"{elapsed:.0f} s, {self.examples / max(elapsed, 1e-9):.1f} examples/s"
        )

    def known(self) -> str:
        """What failed and is known, "" if nothing did."""
        each = ", ".join(f"{name} {count}" for name, count in self.excused.most_common())
        return f"known failures met, by examples: {each}" if each else ""

    def record(self, device: str) -> dict[Key, Row]:
        """Of every op and dtype the examples and the worst error, for `properties.fuzz.record`."""
        rows = (
            Row(op, dtype, device, tally.examples, round(tally.worst, 3))
            for (op, dtype), tally in self.numbers.items()
            if tally.examples
        )
        return {row.key: row for row in rows}

    def __rich__(self) -> Table:
        table = Table(title=self.summary(), title_justify="left")
        table.add_column("op", no_wrap=True)
        table.add_column("law", no_wrap=True)
        for name in ("examples", "examples/s", "error/budget", "findings"):
            table.add_column(name, justify="right")
        previous = ""
        for (op, law), tally in self.rows.items():
            rate = tally.examples / tally.seconds if tally.seconds else 0.0
            table.add_row(
                op if op != previous else "",
                law,
                str(tally.examples),
                f"{rate:.1f}",
                f"{tally.worst:.2f}" if tally.worst else "exact" if tally.examples else "",
                str(len(tally.findings)) if tally.findings else "",
                style="bold red" if tally.findings else "",
            )
            previous = op
        return table
