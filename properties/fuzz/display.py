"""The fuzzer's output while it runs and at its end."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.table import Table

from properties.counted import counted
from properties.fuzz.bucket import Bucket
from properties.fuzz.log import Log, Tally
from properties.fuzz.night import Night

# Lines of a table besides its rows.
_FRAME = 7


class Display:
    """Examples, worst error and bugs by op and law, in as many rows as the terminal has."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.log: Log = night.log

    def summary(self) -> str:
        elapsed, bugs = self.night.elapsed, self.log.bug_count
        examples = self.log.total.judged
        none = "no bugs" if examples else "nothing judged"
        return (
            f"{counted(bugs, 'bug') if bugs else none} in {counted(examples, 'example')}, "
            f"{duration(elapsed)}, {examples / max(elapsed, 1e-9):.1f} examples/s"
        )

    def status(self) -> str:
        parts = [self.summary(), f"worst {self.log.total.worst:.2f} of its budget"]
        if self.night.left is not None:
            parts.append(f"{duration(self.night.left)} left")
        if self.log.latest is not None:
            parts.append(f"latest {self.log.latest.name}")
        return "; ".join(parts)

    def closing(self) -> Iterator[str]:
        """Lines after the summary: each bug again, and what was not reported."""
        explained: set[Bucket] = set()
        for cause in self.log.causes:
            yield f"  {cause.line}:"
            yield from (f"    {bucket.count} x {bucket.line}" for bucket in cause.buckets)
            explained.update(cause.buckets)
        for bucket in self.log.buckets:
            if bucket not in explained:
                yield f"  {bucket.count} x {bucket.line}"
                yield from bucket.others
        for title, counts in (
            ("known failures met, by examples", self.log.excused),
            ("no findings, as the machine may be at fault", self.log.unrepeated),
            ("not tested, by examples that it spoiled", Counter(self.log.untested)),
        ):
            if counts:
                yield f"{title}: {', '.join(f'{n} {count}' for n, count in counts.most_common())}"
        if self.log.changed:
            files = ", ".join(sorted(self.log.changed))
            yield f"changed meanwhile, so that some examples may have met another version: {files}"
        cut_off = self.night.cut_off
        for name, line in cut_off.items():
            yield f"cut off after the deadline; its case may hang: {name}\n{line}"
        tallies = self.log.tallies.items()
        untried = sum(not tally.examples and job.name not in cut_off for job, tally in tallies)
        if untried:
            jobs = counted(len(self.log.tallies), "job")
            yield f"{untried} of {jobs} had no turn: run longer, or name laws with --law"
        resting = [job.name for job in self.log.tallies if self.night.rests(job)]
        if resting:
            more = f" and {len(resting) - 5} more" if len(resting) > 5 else ""
            names = ", ".join(resting[:5])
            yield f"left out after hangs, crashes or an error below: {names}{more}"
        for text, count in self.log.errors.items():
            yield f"{count} x an error of the suite, or of the adapter that it names:\n{text}"

    def table(self, most: int | None = None) -> Table:
        """Return a row for each op and law.

        Args:
            most: the most rows. Those that found something come first, then the latest, then those
                with the largest error.
        """
        rows = self.log.rows()
        order = {key: place for place, key in enumerate(rows)}
        latest = self.log.latest and (self.log.latest.op, self.log.latest.law)
        if most is not None and most < len(rows):
            by_interest = sorted(
                rows, key=lambda k: (-rows[k].failed, k != latest, -rows[k].worst, order[k])
            )
            rows = {key: rows[key] for key in sorted(by_interest[:most], key=order.__getitem__)}
        table = Table(title=self.status(), title_justify="left")
        table.add_column("op", no_wrap=True)
        table.add_column("law", no_wrap=True)
        for name in ("examples", "per s", "worst", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        previous = ""
        for key, tally in rows.items():
            op, law = key
            style = "bold red" if tally.failed else "bold" if key == latest else ""
            table.add_row(op if op != previous else "", law, *_cells(tally), style=style)
            previous = op
        left = len(order) - len(rows)
        if left:
            untried = sum(not t.examples for k, t in self.log.rows().items() if k not in rows)
            rows_left = counted(left, "more row")
            table.caption = f"and {rows_left}, {untried} of them without an example"
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        if console.is_interactive:
            # The title wraps at the width of the columns.
            title = len(self.status()) // 60
            yield self.table(max(1, console.height - _FRAME - title))
        else:
            yield self.table()


def _cells(tally: Tally) -> tuple[str, ...]:
    if not tally.examples:
        return "none yet", "", "", ""
    rate = tally.examples / tally.seconds if tally.seconds else 0.0
    worst = f"{tally.worst:.2f}" if tally.worst else "" if tally.failed else "exact"
    return str(tally.examples), f"{rate:.1f}", worst, str(tally.failed or "")


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
