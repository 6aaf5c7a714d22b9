"""Equivalent mutants, which no check can kill, each listed with the reason."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from properties.mutants.mutant import Mutant

PATH = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Equivalent:
    """A listed mutant.

    Args:
        function: full name of its function.
        change: the removed and added lines, as in `Mutant.text`.
        reason: why its results are equal, or why the difference cannot be seen here.
    """

    function: str
    change: str
    reason: str


def read(path: Path = PATH, table: str = "equivalent") -> list[Equivalent]:
    """Read the list. An entry has a function, a reason, and one change or more.

    Args:
        table: "equivalent" for single edits, "semantic" for semantic mutants.

    Raises:
        ValueError: an entry is malformed or without a reason, or a change is listed twice.
    """
    entries: list[Equivalent] = []
    for entry in tomllib.loads(path.read_text()).get(table, []):
        if {*entry} != {"function", "changes", "reason"} or not entry["reason"].strip():
            raise ValueError(f"{path.name}: {entry}, expected a function, changes and a reason")
        for change in entry["changes"]:
            text = "\n".join(line.strip() for line in change.strip().splitlines())
            equivalent = Equivalent(entry["function"], text, " ".join(entry["reason"].split()))
            if any((e.function, e.change) == (equivalent.function, text) for e in entries):
                raise ValueError(
                    f"{path.name}: {equivalent.function} has the change twice:\n{text}"
                )
            entries.append(equivalent)
    return entries


def match(
    listed: Sequence[Equivalent], mutants: Iterable[Mutant]
) -> tuple[dict[str, Equivalent], list[Equivalent]]:
    """Match entries to mutants by key; also return the stale entries."""
    places = {(e.function, e.change): e for e in listed}
    matched = {}
    for mutant in mutants:
        entry = places.get((mutant.where, mutant.text))
        if entry is not None:
            matched[mutant.key] = entry
    stale = [e for e in listed if e not in matched.values()]
    return matched, stale
