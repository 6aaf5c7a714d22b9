"""Write what runs have measured as a document, and plot it."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from kernels.bench.baselines import KINDS
from kernels.bench.groups import Row
from kernels.bench.plots import plot
from kernels.bench.results import Results
from kernels.bench.table import HEADINGS, cells, names, reason
from kernels.bench.timing import Ceilings

DOCUMENT = Path(__file__).parents[1] / "BENCHMARKS.md"
MARK = "<!-- What follows is written by `python -m kernels.bench.report --write`. -->"

ABOUT = """\
Prints the document: for each file the command, versions and device, and where each wins. --write
puts it behind the mark in the document instead; what stands before the mark stays.
"""


def fastest(rows: Iterable[Row], kind: str) -> Row | None:
    """The row of a kind with the least time."""
    timed = (row for row in rows if row.kind == kind and row.timing is not None)
    return min(timed, key=lambda row: row.timing.median, default=None)


def document(runs: Sequence[Results], *, every_row: bool = False) -> str:
    """The runs, one after the other, in Markdown."""
    return "\n".join(line for run in runs for line in _run(run, every_row))


def _run(run: Results, every_row: bool) -> Iterator[str]:
    setting = run.setting
    roof = Ceilings(**setting["ceilings"])
    versions = ", ".join(
        f"{name} {setting[name]}"
        for name in ("python", "torch", "triton", "fla-core")
        if setting[name] is not None
    )
    yield from (f"## `{setting['command']}`", "")
    yield (
        f"{setting['device']}, {versions}, {setting['date']}. A copy moves "
        f"{roof.bandwidth / 1e12:.2f} TB/s, a product of matrices in bfloat16 takes "
        f"{roof.arithmetic / 1e12:.0f} TFLOP/s."
    )
    if run.left_out:
        yield f"Left out, as there was no time: {', '.join(run.left_out)}."
    groups = [list(of_group) for _, of_group in groupby(run.rows, key=lambda row: row.group)]
    yield from ("", *_wins(groups), "")
    if every_row:
        yield from (*_every_row(run.rows), "")


_WINS = ("op", "B,T,H,K,V", "pass", "ours", *KINDS, "/fastest", "/floor", "memory/fla", "first, s")


def _wins(groups: Sequence[Sequence[Row]]) -> Iterator[str]:
    """A line for each group with the fastest of each kind, and a count before."""
    won, lines = 0, []
    for rows in groups:
        ours, *others = (fastest(rows, kind) for kind in ("ours", *KINDS))
        theirs = [row for row in others if row is not None]
        ratio = ""
        if ours is not None and theirs:
            against = ours.timing.median / min(row.timing.median for row in theirs)
            won += against <= 1
            ratio = f"**{against:.2f}**" if against <= 1 else f"{against:.2f}"
        texts = [
            *rows[0].group,
            _refusal(rows) if ours is None else _brief(ours),
            *map(_brief, others),
            ratio,
            _times_floor(ours),
            _memory(ours, fastest(rows, "fla")),
            "" if ours is None or ours.first is None else f"{ours.first:.2f}",
        ]
        lines.append(_line(texts))
    compared = sum(_compared(rows) for rows in groups)
    yield f"Ours is as fast as the fastest of the others, or faster, in {won} of {compared} groups."
    yield from ("", _line(_WINS), _line(["---"] * len(_WINS)), *lines)


def _compared(rows: Sequence[Row]) -> bool:
    others = any(fastest(rows, kind) is not None for kind in KINDS)
    return others and fastest(rows, "ours") is not None


def _brief(row: Row | None) -> str:
    return "" if row is None else f"{row.mode} {row.timing.median:.3f}"


def _refusal(rows: Iterable[Row]) -> str:
    """Say why our kernel has no time: the reason of its first mode that failed."""
    return next((reason(row) for row in rows if row.kind == "ours" and row.error), "")


def _times_floor(row: Row | None) -> str:
    if row is None or not row.floor:
        return ""
    return f"{row.timing.median / row.floor:.1f}"


def _memory(ours: Row | None, fla: Row | None) -> str:
    if ours is None or fla is None or not fla.timing.peak:
        return ""
    return f"{ours.timing.peak / fla.timing.peak:.2f}"


def _every_row(rows: Iterable[Row]) -> Iterator[str]:
    yield _line(HEADINGS)
    yield _line(["---"] * len(HEADINGS))
    for row in rows:
        if row.timing is None:
            found = [*names(row), reason(row)]
            yield _line([*found, *[""] * (len(HEADINGS) - len(found))])
        else:
            yield _line(cells(row))


def _line(texts: Sequence[str]) -> str:
    escaped = (text.replace("|", r"\|") for text in texts)
    return f"| {' | '.join(escaped)} |"


def parser() -> argparse.ArgumentParser:
    """The options of `python -m kernels.bench.report`."""
    parse = argparse.ArgumentParser(
        prog="python -m kernels.bench.report",
        description=__doc__,
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="of `python -m kernels.bench --json`"
    )
    parse.add_argument("--every-row", action="store_true", help="list every row besides")
    parse.add_argument(
        "--write", nargs="?", type=Path, const=DOCUMENT, metavar="DOCUMENT",
        help=f"write to a document that has the mark (by default {DOCUMENT.name})",
    )  # fmt: skip
    parse.add_argument(
        "--plot", type=Path, metavar="DIRECTORY",
        help="plot time against tokens and against head dim, where they vary; wants matplotlib",
    )  # fmt: skip
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if there is nothing that it could do."""
    chosen = parser().parse_args(arguments)
    try:
        runs = [Results.read(path) for path in chosen.files]
        text = document(runs, every_row=chosen.every_row)
        if chosen.plot is not None:
            for path in plot(runs, chosen.plot):
                print(f"plotted {path}", file=sys.stderr)
        if chosen.write is None:
            print(text, end="")
        else:
            _write(chosen.write, text)
    except (OSError, ValueError, ImportError) as error:
        print(f"kernels.bench.report: {error}", file=sys.stderr)
        return 2
    return 0


def _write(path: Path, text: str) -> None:
    head, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise ValueError(f"{path}: no line {MARK!r}, behind which to write")
    path.write_text(f"{head}{mark}\n\n{text}")


if __name__ == "__main__":
    sys.exit(main())
