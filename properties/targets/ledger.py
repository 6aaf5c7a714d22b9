"""Known failures of a target: each with its cause, so that what is new stands out.

A law that breaks is excused only if one of its calls shows a known failure. That is told by the
arguments of the call, as laws change the cases that were drawn.
"""

import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from properties.case import Case
from properties.catalogue.op import Function, Op

_FOLDER = Path(__file__).parents[2] / "regressions" / "targets"


def _never(given: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A bug of a target.

    Args:
        name: what it is called, and the script that shows it with nothing but the library.
        law: one that the bug breaks.
        case: the smallest one known; None where the adapter keeps clear of the bug, because it
            takes the device with it or calls for what the library's documentation rules out.
        modes: of the case's op, that have the bug.
        shows: whether a call with these arguments shows it.
        expected, got: as the script prints them.
        cause: in one line.
        upstream: where it is reported; None where no report is known.
        devices: "cpu" or "cuda" or both, where it shows so.
    """

    name: str
    law: str
    expected: str
    got: str
    cause: str
    case: Case | None = None
    modes: tuple[str, ...] = ()
    shows: Callable[[Mapping[str, Any]], bool] = _never
    upstream: str | None = None
    devices: tuple[str, ...] = ("cpu",)


class Ledger:
    """The known failures of a target, and how often each was met."""

    def __init__(self, entries: Iterable[KnownFailure] = ()) -> None:
        self.entries = tuple(entries)
        self.met: set[str] = set()
        self.excused: Counter[str] = Counter()

    def watching(self, op: Op, function: Function) -> Function:
        """`function`, with a look at what it is called with."""
        entries = [entry for entry in self.entries if entry.case and entry.case.op == op.name]
        if not entries:
            return function

        def watched(**given: Any) -> Any:
            for entry in entries:
                if given.get("mode") in entry.modes and entry.shows(given):
                    self.met.add(entry.name)
            return function(**given)

        return watched

    def start(self) -> None:
        """Forget the calls so far: a law begins."""
        self.met.clear()

    def excuses(self) -> bool:
        """Whether a law that has just failed met a known failure, which is counted."""
        self.excused.update(self.met)
        return bool(self.met)


def read(name: str, target: str, device: str | None) -> Ledger:
    """The ledger in a file.

    Args:
        name: a path of a Python file with a `LEDGER`, "none", or "auto" for the ledger of the
            target in `regressions/`, where there is one.
        target: as `--target` names it.
        device: type of the device under test; failures of others are left out. None keeps all.

    Raises:
        ValueError: no such file, or no `LEDGER` in it.
    """
    if name == "none":
        return Ledger()
    path = _FOLDER / target / "ledger.py" if name == "auto" else Path(name)
    if not path.is_file():
        if name == "auto":
            return Ledger()
        raise ValueError(f"ledger: {name!r}, expected a file, 'auto' or 'none'")
    entries = runpy.run_path(str(path)).get("LEDGER")
    if entries is None:
        raise ValueError(f"ledger: {name!r} has no LEDGER, expected a tuple of KnownFailure")
    return Ledger(entry for entry in entries if device in (None, *entry.devices))
