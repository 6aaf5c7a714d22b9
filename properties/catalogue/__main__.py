"""Print the table of ops, their modes, laws and reach, or write it into a document."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from properties.catalogue import OPS, Op
from properties.mutants import shares
from properties.mutants.mutant import modules
from properties.mutants.triggers import run as triggers
from properties.planting.op_modules import OpModules

BEGIN = "<!-- table: python -m properties.catalogue --write properties/README.md -->"
END = "<!-- end of table -->"
_OF_BITS = (
    "Bits are those of a sequence that is computed in another way: alone or beside others "
    "(`batch`), from other pages\n(`pages`), in two chunks of a prompt (`cut`), in another number "
    "of splits (`splits`). A level contains those before\nit. Beyond the level of an op the error "
    "budget judges. A GPU's bits also depend on alignment."
)
_OF_MUTANTS = (
    "A mutant is a small mistake, planted alone in the kernels or the reference page of an op. The "
    "counts leave out\nmutants that are listed as equivalent; ops share kernels."
)
_REACHED = "predicates reached: ci %, night %"
_OF_TRIGGERS = (
    'A predicate is about calls, such as "K = 64 and only the initial state is trained". It is '
    "reached if a law fails\nwhen results are wrong in these calls: with the profile `ci`, and "
    "after a night of fuzzing besides\n(`python -m properties.mutants --triggers`). An op without "
    "numbers is not measured."
)


def table() -> str:
    """Return one row per op: its modes, its laws, and their reach.

    Without a measurement of the reach, the last column counts the mutants that the laws kill.
    """
    every = list(dict.fromkeys(law for op in OPS.values() for law in op.laws))
    reached = triggers.read()
    killed = {} if reached else _killed()
    rows = [["op", "modes", "bits", "laws"], ["---"] * 4]
    for op in OPS.values():
        modes = ", ".join(mode.name for mode in op.modes) or "none yet"
        rows.append([f"`{op.name}`", modes, _bits(op), _laws(op.laws, every)])
    below = ["", _OF_BITS]
    if reached:
        cells = [_percents(reached[name]) if name in reached else "" for name in OPS]
        rows = [[*row, cell] for row, cell in zip(rows, [_REACHED, "---", *cells], strict=True)]
        below += ["", _OF_TRIGGERS]
    elif killed:
        column = ["mutants killed", "---", *(str(killed.get(name, "")) for name in OPS)]
        rows = [[*row, cell] for row, cell in zip(rows, column, strict=True)]
        below += ["", _OF_MUTANTS]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *below])


def _percents(share: Mapping[str, int]) -> str:
    """Rounded down: 100 means all."""
    parts = (share[name] for name in ("ci", "night") if name in share)
    return ", ".join(f"{1000 * part // share['predicates'] / 10}" for part in parts)


def _killed() -> dict[str, shares.Share]:
    """Return the shares of the ops all of whose modules have been mutated."""
    known, mutated = shares.read(), {name for name, _ in modules()}
    found = {
        op.name: shares.together(known, OpModules.of(op).modules & mutated) for op in OPS.values()
    }
    return {name: share for name, share in found.items() if share is not None}


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


def main() -> int:
    parse = argparse.ArgumentParser(prog="python -m properties.catalogue", description=__doc__)
    what = parse.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="FILE", help="put the table into FILE")
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="exit with 1 if the table of FILE is not current"
    )
    chosen = parse.parse_args()
    path = chosen.write or chosen.check
    if path is None:
        print(table())
        return 0
    if not path.is_file():
        parse.error(f"{path}: no such file, expected a document with a table")
    text = path.read_text()
    current = with_table(text)
    if chosen.write:
        path.write_text(current)
    elif text != current:
        print(f"{path}: its table is not current; python -m properties.catalogue --write {path}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
