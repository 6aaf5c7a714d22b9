"""Print the table of ops, modes, laws and mutants killed, or keep the one in a document current."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.mutants import shares
from properties.mutants.hunt import Sources
from properties.mutants.mutant import modules
from properties.targets import Target, load

BEGIN = "<!-- table: python -m properties.catalogue --write README.md -->"
END = "<!-- end of table -->"


def table() -> str:
    """One row per op: its modes, the laws that it obeys, and how many of its mutants they kill."""
    ours = load("ours", torch.device("cpu"))
    every = list(dict.fromkeys(law for op in OPS.values() for law in op.laws))
    lines = ["| op | modes | laws | mutants killed |", "|---|---|---|---|"]
    for op in OPS.values():
        modes = ", ".join(mode.name for mode in op.modes)
        laws = _laws(op.laws, every)
        lines.append(f"| `{op.name}` | {modes} | {laws} | {_killed(op, ours)} |")
    return "\n".join([*lines, "", f"All laws: {', '.join(map(_words, every))}."])


def _killed(op: Op, ours: Target) -> str:
    """Of what the op is made of; nothing where not all of that has been tried."""
    mutated = {name for name, _ in modules()}
    share = shares.together(shares.read(), Sources.of(op, ours).modules & mutated)
    return "" if share is None else str(share)


def _laws(laws: Sequence[str], every: Sequence[str]) -> str:
    """Those that there are, or those that there are not, whichever is shorter."""
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
    what.add_argument("--check", type=Path, metavar="FILE", help="exit 1 if FILE's table is old")
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
