"""Print the table of ops, their modes, laws and reach, or write it into a document."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from properties.catalogue import OPS, Op
from properties.mutants.triggers import run as triggers

BEGIN = "<!-- table: python -m properties.table --write properties/README.md -->"
END = "<!-- end of table -->"
_OF_BITS = (
    "The column `bits` says up to which level a sequence gets the same bits: alone and beside "
    "others (`batch`), then also from\nother pages (`pages`), in two chunks of a prompt (`cut`), "
    "and in another number of splits (`splits`). Beyond that level\nthe error budget judges. A "
    "GPU's bits also depend on alignment."
)
_REACHED = "predicates reached: ci %, night %"
_OF_TRIGGERS = (
    'A predicate is about calls, such as "K = 64 and only the initial state is trained". It is '
    "reached if a law fails\nwhen results are wrong in these calls: with the profile `ci`, and "
    "after a night of fuzzing besides\n(`python -m properties.mutants --triggers`). An op without "
    "numbers is not measured. Numbers age as draws and laws change;\n`git blame` of "
    "`mutants/triggers.json` says when each was measured."
)


def table() -> str:
    """Return one row per op: its modes, its laws, and their reach."""
    every = list(dict.fromkeys(law for op in OPS.values() for law in op.laws))
    reached = triggers.read()
    rows = [["op", "modes", "bits", "laws", _REACHED], ["---"] * 5]
    for op in OPS.values():
        modes = ", ".join(mode.name for mode in op.modes) or "none yet"
        reach = _percents(reached[op.name]) if op.name in reached else ""
        rows.append([f"`{op.name}`", modes, _bits(op), _laws(op.laws, every), reach])
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", _OF_BITS, "", _OF_TRIGGERS])


def _percents(share: Mapping[str, int]) -> str:
    """Rounded down: 100 means all."""
    parts = (share[name] for name in ("ci", "night") if name in share)
    return ", ".join(f"{1000 * part // share['predicates'] / 10}" for part in parts)


def _bits(op: Op) -> str:
    """The highest level of batch invariance at which its modes keep their bits."""
    if "packing" not in op.laws or not op.modes:
        return ""
    return ", ".join(dict.fromkeys(mode.bits for mode in op.modes))


def _laws(laws: Sequence[str], every: Sequence[str]) -> str:
    """Name the laws that hold, or "all but" those that do not, whichever is shorter."""
    missing = [law for law in every if law not in laws]
    if not missing:
        return f"all {len(every)}"
    if len(missing) < len(laws):
        return f"all but {', '.join(map(_words, missing))}"
    return ", ".join(map(_words, laws))


def _words(name: str) -> str:
    return name.replace("_", " ")


def with_table(text: str) -> str:
    """`text` with today's table between its two markers.

    Raises:
        ValueError: the markers are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"document: no table, expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parse = argparse.ArgumentParser(prog="python -m properties.table", description=__doc__)
    what = parse.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="FILE", help="put the table into FILE")
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="exit with 1 if the table of FILE is not current"
    )
    chosen = parse.parse_args(arguments)
    path = chosen.write or chosen.check
    option = "--write" if chosen.write else "--check"
    if path is None:
        print(table())
        return 0
    if not path.is_file():
        parse.error(f"{option}: {path}, expected a document with a table")
    try:
        text = path.read_text()
        current = with_table(text)
    except (OSError, ValueError) as error:
        parse.error(f"{option}: {path}: {error}")
    if chosen.write:
        path.write_text(current)
    elif text != current:
        print(f"{path}: its table is not current; python -m properties.table --write {path}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
