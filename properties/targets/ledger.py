"""Known failures of a target, each with its cause, so that new ones stand out.

An entry excuses one symptom of some calls. Its `shows` reads the arguments of a call, since laws
change drawn cases; its `symptoms` describe the failure. Another symptom is reported even if a call
shows a known failure.
"""

import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from properties.cases.case import Case
from properties.catalogue.op import Function, Op
from properties.verdict import Comparison
from properties.verdict.exceptions import message_of

# Characters of an exception's text that an entry is given.
_TEXT = 400
_FOLDER = Path(__file__).parents[2] / "regressions" / "targets"

Given = Mapping[str, Any]
# Why a law does not hold: a result that differs, an exception, or a message.
Fault = Comparison | BaseException | str


@dataclass(frozen=True)
class Wrong:
    """Results that differ.

    Args:
        results: their names, "o" or "dq"; None for any.
        most: the largest error as a multiple of the budget; infinity if the cause sets no limit and
            for results compared bit for bit. It may be a function of the call's arguments.
        finite: all results are finite. False excuses NaN and infinities as well.
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
        message: a part of its text; empty if it has none.
    """

    kind: str
    message: str

    def of(self, given: Given) -> "Raised":
        return self

    def explains(self, fault: Fault) -> bool:
        if not isinstance(fault, Exception) or type(fault).__name__ != self.kind:
            return False
        text = message_of(fault)
        return self.message in text if self.message else not text


@dataclass(frozen=True)
class Told:
    """A violation reported as a message instead of a comparison.

    Args:
        sentence: the whole message.
    """

    sentence: str

    def of(self, given: Given) -> "Told":
        return self

    def explains(self, fault: Fault) -> bool:
        return fault == self.sentence


Symptom = Wrong | Raised | Told


def symptom(fault: Fault) -> Symptom:
    """The symptom of a fault, as an entry that excuses it would write it."""
    if isinstance(fault, Comparison):
        worst = max(fault.largest, fault.loss)
        most = float(f"{1.1 * worst:.2g}") if worst > 1 else 1.0
        return Wrong((fault.name,), most, finite=fault.finite)
    if isinstance(fault, BaseException):
        first, *others = message_of(fault).strip().split("\n")
        # Triton begins with a place, "at 46:10:", and ends with what is wrong there.
        said = others[-1] if others and first.endswith(":") else first
        return Raised(type(fault).__name__, said[:_TEXT])
    return Told(fault)


def entry_file(law: str, case: Case, symptom: str) -> str:
    """The source of a ledger entry that excuses a failure, with blanks for what only a person
    knows.

    Until `shows` tests the arguments, the entry excuses nothing.
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
        name: its name, and that of the script that shows it with the library alone.
        law: one that the bug breaks.
        releases: those seen to have it, "fla-core 0.6.0". In other releases the entry excuses
            nothing.
        cases: the smallest known case of each affected op; none if the adapter avoids the bug
            because it kills the device or contradicts the library's documentation.
        modes: the affected modes of these ops.
        shows: whether a call with these arguments shows it.
        symptoms: what a law sees; one of them must explain each excused fault.
        expected, got: as the script prints them.
        cause: in one line.
        devices: where it shows: "cpu", "cuda" or both.
        index_bits: of the simulator, for the script.
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
    devices: tuple[str, ...] = ("cpu",)
    index_bits: int = 32

    def about(self, op: Op) -> bool:
        return any(case.op == op.name for case in self.cases)

    @property
    def installed(self) -> bool:
        """Whether it is about a release that is installed, or about code that has none."""
        return not self.releases or any(_installed(release) for release in self.releases)


def _installed(release: str) -> bool:
    package, number = release.split()
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return False
    return found.version.partition("+")[0] == number and not _shadowed(found)


def _shadowed(found: Distribution) -> bool:
    """Whether its packages are imported from another place, as an old release in front of it."""
    for file in found.files or ():
        if len(file.parts) == 2 and file.name == "__init__.py":
            spec = find_spec(file.parts[0])
            place = Path(str(found.locate_file(file))).resolve()
            if spec is not None and spec.origin and Path(spec.origin).resolve() != place:
                return True
    return False


class Ledger:
    """The known failures of a target, and how often each occurred.

    Attributes:
        met: symptoms that the calls of this law may have, each with its entry's name.
        used: entries that excused a fault of this law.
        excused: entry → how many laws it excused.
    """

    def __init__(self, entries: Iterable[KnownFailure] = ()) -> None:
        self.entries = tuple(entries)
        self.met: set[tuple[str, Symptom]] = set()
        self.used: set[str] = set()
        self.excused: Counter[str] = Counter()

    def watching(self, op: Op, function: Function) -> Function:
        """Wrap `function` to inspect its arguments."""
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
        """Forget earlier calls when a law begins."""
        self.met.clear()
        self.used.clear()

    def excuses(self, fault: Fault) -> bool:
        """Whether a known failure shown by a call explains this fault; if so, count it."""
        names = {name for name, symptom in self.met if symptom.explains(fault)}
        self.excused.update(names - self.used)
        self.used |= names
        return bool(names)


def read(name: str, target: str, device: str | None) -> Ledger:
    """Read a ledger from a file.

    Args:
        name: a path of a Python file with a `LEDGER`, "none", or "auto" for the target's ledger in
            `regressions/`, if any.
        target: as for `--target`.
        device: type of the device under test; failures on other devices or in releases not
            installed are dropped. None keeps all.

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
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {message_of(error)}"
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
