"""Known failures of a target: each with its cause, so that what is new stands out.

An entry excuses one symptom of some calls. Its `shows` reads the arguments of a call, as laws
change the cases that were drawn; its `symptoms` say what the failure looks like. A law that breaks
in another way is reported, even where one of its calls shows a known failure.
"""

import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from properties.cases.case import Case
from properties.catalogue.op import Function, Op
from properties.verdict import Comparison

_FOLDER = Path(__file__).parents[2] / "regressions" / "targets"

Given = Mapping[str, Any]
# Why a law does not hold: a result that differs, an exception, or a sentence.
Fault = Comparison | BaseException | str


@dataclass(frozen=True)
class Wrong:
    """Results that differ from what is wanted.

    Args:
        results: their names, "o" or "dq"; None for any.
        most: the largest error of a number, as a multiple of its budget; infinity where the cause
            sets no limit, and for results that are compared bit for bit. It may follow from the
            arguments of the call.
        finite: all results are numbers. False excuses NaN and infinities as well.
    """

    results: tuple[str, ...] | None = None
    most: float | Callable[[Given], float] = 1.0
    finite: bool = True

    def of(self, given: Given) -> "Wrong":
        return replace(self, most=self.most(given)) if callable(self.most) else self

    def explains(self, fault: Fault) -> bool:
        if not isinstance(fault, Comparison) or fault.got.shape != fault.want.shape:
            return False
        if self.results is not None and fault.name not in self.results:
            return False
        if self.finite and not fault.finite:
            return False
        assert not callable(self.most)
        return max(fault.largest, fault.loss) <= self.most


@dataclass(frozen=True)
class Raised:
    """An exception.

    Args:
        kind: name of its type.
        message: a piece of its text; empty if it has none.
    """

    kind: str
    message: str

    def of(self, given: Given) -> "Raised":
        return self

    def explains(self, fault: Fault) -> bool:
        if not isinstance(fault, Exception) or type(fault).__name__ != self.kind:
            return False
        return self.message in str(fault) if self.message else not str(fault)


@dataclass(frozen=True)
class Told:
    """A violation that a law reports in a sentence instead of in numbers.

    Args:
        sentence: all of it.
    """

    sentence: str

    def of(self, given: Given) -> "Told":
        return self

    def explains(self, fault: Fault) -> bool:
        return fault == self.sentence


Symptom = Wrong | Raised | Told


def symptom(fault: Fault) -> Symptom:
    """What a fault looks like, in the words of an entry that would excuse it."""
    if isinstance(fault, Comparison):
        worst = max(fault.largest, fault.loss)
        most = float(f"{1.1 * worst:.2g}") if worst > 1 else 1.0
        return Wrong((fault.name,), most, finite=fault.finite)
    if isinstance(fault, BaseException):
        return Raised(type(fault).__name__, str(fault).partition("\n")[0])
    return Told(fault)


def entry_file(law: str, case: Case, symptom: str) -> str:
    """The text of a ledger entry that excuses a failure; what only a person can know is left open.

    Without a test of the arguments in `shows` the entry excuses nothing.
    """
    return f'''"""{case.op} ({case.mode}): the law "{law}" does not hold. For the LEDGER."""

from math import inf

from properties.cases.case import Case
from properties.targets.ledger import KnownFailure, Raised, Told, Wrong

ENTRY = KnownFailure(
    name="what it is called",
    law="{law}",
    releases=("package 1.2.3",),
    expected="",
    got="",
    cause="in one line",
    cases=({case.line()},),
    modes=("{case.mode}",),
    # Which calls show it, by their arguments.
    shows=lambda given: False,
    symptoms=({symptom},),
)
'''


def _never(given: Given) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A bug of a target.

    Args:
        name: what it is called, and the script that shows it with nothing but the library.
        law: one that the bug breaks.
        releases: those that have it and were looked at, "fla-core 0.6.0". In another release the
            entry excuses nothing. Empty for code that is not released.
        cases: the smallest one known of each op that has it; none where the adapter keeps clear of
            the bug, because it takes the device with it or calls for what the library's
            documentation rules out.
        modes: of these ops, that have the bug.
        shows: whether a call with these arguments shows it.
        symptoms: what a law sees then; one of them explains each fault that is excused.
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
    releases: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    modes: tuple[str, ...] = ()
    shows: Callable[[Given], bool] = _never
    symptoms: tuple[Symptom, ...] = ()
    upstream: str | None = None
    devices: tuple[str, ...] = ("cpu",)

    def about(self, op: Op) -> bool:
        return any(case.op == op.name for case in self.cases)

    @property
    def installed(self) -> bool:
        """Whether it is about a release that is installed, or about code that has none."""
        return not self.releases or any(_installed(release) for release in self.releases)


def _installed(release: str) -> bool:
    package, number = release.split()
    try:
        return version(package).partition("+")[0] == number
    except PackageNotFoundError:
        return False


class Ledger:
    """The known failures of a target, and how often each was met.

    Args:
        met: symptoms that the calls of this law may have, each with the name of its entry.
        used: entries that have excused a fault of this law.
        excused: entry → how many laws it has excused.
    """

    def __init__(self, entries: Iterable[KnownFailure] = ()) -> None:
        self.entries = tuple(entries)
        self.met: set[tuple[str, Symptom]] = set()
        self.used: set[str] = set()
        self.excused: Counter[str] = Counter()

    def watching(self, op: Op, function: Function) -> Function:
        """`function`, with a look at what it is called with."""
        entries = [entry for entry in self.entries if entry.about(op)]
        if not entries:
            return function

        def watched(**given: Any) -> Any:
            for entry in entries:
                if given.get("mode") in entry.modes and entry.shows(given):
                    self.met.update((entry.name, symptom.of(given)) for symptom in entry.symptoms)
            return function(**given)

        return watched

    def start(self) -> None:
        """Forget the calls so far: a law begins."""
        self.met.clear()
        self.used.clear()

    def excuses(self, fault: Fault) -> bool:
        """Whether a known failure that a call has shown explains this fault; it is counted then."""
        names = {name for name, symptom in self.met if symptom.explains(fault)}
        self.excused.update(names - self.used)
        self.used |= names
        return bool(names)


def read(name: str, target: str, device: str | None) -> Ledger:
    """The ledger in a file.

    Args:
        name: a path of a Python file with a `LEDGER`, "none", or "auto" for the ledger of the
            target in `regressions/`, where there is one.
        target: as `--target` names it.
        device: type of the device under test; failures of others are left out, and those of
            releases that are not installed. None keeps all.

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
    try:
        entries = runpy.run_path(str(path)).get("LEDGER")
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"ledger: {name!r}, expected a file of Python that runs: {told}"
        ) from error
    if not isinstance(entries, tuple | list):
        raise ValueError(f"ledger: {name!r} has no LEDGER, expected a tuple of KnownFailure")
    for entry in entries:
        if not isinstance(entry, KnownFailure):
            raise ValueError(f"ledger: {name!r} has {entry!r}, expected a KnownFailure")
    if device is None:
        return Ledger(entries)
    return Ledger(entry for entry in entries if device in entry.devices and entry.installed)
