"""Checks that killed mutants when a whole module was last tried. They are tried first.

    python -m properties.mutants --record properties/mutants

A check that noticed one edit of a function mostly notices others. The record only decides the
order: a mutant counts as killed when a check fails now.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from properties.files import reading_record, write_record
from properties.planting.trial import Pinned, pinned_of

PATH = Path(__file__).with_suffix(".json")
SEMANTIC_PATH = PATH.with_name("semantic_killers.json")

# Function → how many of its mutants each check killed.
Killers = Mapping[str, Counter[str]]


def read(path: Path = PATH) -> Killers:
    """Read the record; empty if there is no file.

    Raises:
        ValueError: the file has other contents.
    """
    if not path.exists():
        return {}
    killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with reading_record(path):
        for check, kills in json.loads(path.read_text()).items():
            pinned_of(check)
            for function, count in kills.items():
                killers[function][check] += count
    return dict(killers)


def write(path: Path, killers: Killers) -> None:
    """Replace the file's contents, a line for each check."""
    rows: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for function in sorted(killers):
        for check, count in killers[function].items():
            rows[check][function] = count
    write_record(path, rows)


def joined(*several: Killers) -> Killers:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for recorded in several:
        for function, checks in recorded.items():
            sums[function] += checks
    return dict(sums)


def ranked(checks: Counter[str]) -> list[Pinned]:
    """The checks that killed mutants of a function, the most effective first."""
    return [pinned_of(check) for check, _ in checks.most_common()]


def replaced(
    known: Killers, new: Killers, modules: Iterable[str], functions: Collection[str]
) -> Killers:
    """The record, with the functions of some modules replaced by new findings.

    Args:
        functions: those that have mutants. The record forgets others, which are no more.
    """
    prefixes = tuple(f"{module}." for module in modules)
    others = {
        name: checks
        for name, checks in known.items()
        if name in functions and not name.startswith(prefixes)
    }
    return {**others, **{n: checks for n, checks in new.items() if n.startswith(prefixes)}}
