"""Buckets: all failures that look like one bug, with the smallest case."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from properties.cases.case import Case
from properties.counted import counted
from properties.files import write_atomically
from properties.fuzz.answer import Failure
from properties.fuzz.needs import parts, told
from properties.laws.fingerprint import Fingerprint
from properties.targets import NAMES
from properties.targets.ledger import entry_file
from properties.verdict.excess import Excess
from properties.verdict.report import regression_file


@dataclass(eq=False)
class Bucket:
    """Failures that look like one bug.

    Two fingerprints belong to one bug if a case shows both: a wrong mask gives wrong results, and
    if these are zeros, wrong gradients only. Each keeps its smallest case, in case they are two
    bugs after all. Cases whose kernels share no source line show two bugs, and a case that lacks
    what one bug needs shows another.

    Args:
        smallest: the failure with the smallest case of each fingerprint, in order of discovery.
        linked: other fingerprints of the same cases.
        seen: job → how many of its cases failed this way.
        repeats: how often the first failure repeats, and on which engines: lines of the report.
        file: what was written of it, or why nothing was.
        files: the paths of what was written.
        found: seconds since the start.
        lines: source lines of kernels that all of its cases launched; None before the first.
        functions: first lines of Python functions that all of its cases ran, of those noted.
        name: the name of its files, which stays when a smaller case is found.
        needs: parts of its cases (`properties.fuzz.needs`) without which they pass.
        spare: parts of later cases that these turned out not to need.
        steady: whether it repeats each time; if not, what it needs cannot be told.
        worst: the failure whose results are furthest off; None if none is told by numbers.
    """

    smallest: list[Failure]
    linked: set[Fingerprint] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    repeats: tuple[str, ...] = ()
    file: str = ""
    files: tuple[str, ...] = ()
    found: float = 0.0
    lines: frozenset[str] | None = None
    functions: frozenset[str] = frozenset()
    name: str = ""
    needs: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    steady: bool = True
    worst: Failure | None = None

    def __post_init__(self) -> None:
        if not self.name:
            law, case, bug = self.first.law, self.first.case, self.first.fingerprint.bug
            digest = hashlib.sha256(repr(bug).encode()).hexdigest()[:8]
            self.name = f"{case.op}_{case.mode}_{law}_{digest}"
        for failure in self.smallest:
            self._note_excess(failure)

    @property
    def first(self) -> Failure:
        return self.smallest[0]

    @property
    def count(self) -> int:
        return sum(self.seen.values())

    @property
    def ops(self) -> set[str]:
        return {job.partition("-")[0] for job in self.seen}

    @property
    def report(self) -> str:
        """The report of the first failure, with what else is known."""
        parts_told = ", ".join(told(self.first.case, part) for part in self.needs)
        needs = [f"  needs     {parts_told}: it passes without"] if self.needs else []
        lines = [self.first.report, *needs, *self.repeats, *self.others, *filter(None, [self.file])]
        return "\n".join(lines)

    @property
    def others(self) -> list[str]:
        also = [
            f"  also      {failure.fingerprint}: {failure.case.line()}"
            for failure in self.smallest[1:]
        ]
        worst = self.at_worst
        return [*also, f"  at worst  {self.how_far}: {worst.case.line()}"] if worst else also

    @property
    def at_worst(self) -> Failure | None:
        """The failure that is furthest off, unless it is among the smallest."""
        return self.worst if self.worst not in self.smallest else None

    @property
    def how_far(self) -> str:
        """How far the worst case is off, in few words; empty if no number tells."""
        excess = self.worst and self.worst.excess
        return excess.told(self.first.fingerprint.output) if excess else ""

    @property
    def line(self) -> str:
        jobs = ", ".join(f"{job} {count}" for job, count in self.seen.most_common(3))
        more = f" and {counted(len(self.seen) - 3, 'more job')}" if len(self.seen) > 3 else ""
        what = ", ".join(filter(None, [str(self.first.fingerprint), self.how_far]))
        return f"{what}: {jobs}{more}"

    @property
    def fingerprints(self) -> set[Fingerprint]:
        return {*self.linked, *(failure.fingerprint for failure in self.smallest)}

    def has(self, fingerprint: Fingerprint) -> bool:
        return fingerprint.bug in {known.bug for known in self.fingerprints}

    def shows(
        self,
        fingerprints: Iterable[Fingerprint],
        lines: frozenset[str],
        case: Case | None = None,
    ) -> bool:
        """Whether a case with these fingerprints shows this bug.

        Args:
            lines: that the case launched; kernels without a common line have no common bug.
            case: what it needs is there, unless a source line names the bug.
        """
        alike = [fingerprint for fingerprint in fingerprints if self.has(fingerprint)]
        apart = lines and self.lines and not lines & self.lines
        if not alike or apart:
            return False
        named = any(fingerprint.place for fingerprint in alike)
        return named or case is None or {*self.needs} <= parts(case).keys()

    def is_as_unsteady_as(self, other: "Bucket") -> bool:
        """Whether neither bug repeats each time, and both make a result of one kernel wrong."""
        kernels = {(bucket.first.case.op, bucket.first.case.mode) for bucket in (self, other)}
        mine, its = ({one.output for one in bucket.fingerprints} for bucket in (self, other))
        return not (self.steady or other.steady) and len(kernels) == 1 and bool(mine & its - {""})

    def add(self, failure: Failure) -> None:
        """Keep a failure if its case is the smallest of its fingerprint, or the worst."""
        self.linked.update(failure.also)
        self._note_excess(failure)
        for place, known in enumerate(self.smallest):
            if known.fingerprint.bug == failure.fingerprint.bug:
                if _size(failure.case) < _size(known.case):
                    self.smallest[place] = failure
                return
        self.smallest.append(failure)

    def _note_excess(self, failure: Failure) -> None:
        """Keep a failure if its results are furthest off, and of several the smallest case."""
        if failure.excess is None:
            return
        if self.worst is None or _gravity(failure) > _gravity(self.worst):
            self.worst = failure

    def is_larger(self, failure: Failure) -> bool:
        """Whether all known cases of this bug are larger than that of a failure."""
        return all(_size(failure.case) < _size(known.case) for known in self.smallest)

    @property
    def code(self) -> frozenset[str]:
        """Lines of kernels and first lines of functions that all of its cases ran."""
        return (self.lines or frozenset()) | self.functions

    def ran(self, lines: frozenset[str], functions: frozenset[str] = frozenset()) -> None:
        """Note what one more of its cases launched, and the functions that it ran if noted."""
        self.lines = lines if self.lines is None else self.lines & lines
        if functions:
            self.functions = (self.functions or functions) & functions

    def absorb(self, other: "Bucket") -> None:
        """Merge another bucket of the same bug, and delete its files."""
        for path in other.files:
            with suppress(OSError):
                Path(path).unlink()
        for failure in (*other.smallest, *filter(None, [other.worst])):
            self.add(failure)
        self.linked |= other.linked
        self.needs = tuple(name for name in self.needs if name in other.needs)
        self.seen += other.seen
        if other.lines is not None:
            self.ran(other.lines, other.functions)

    def write(self, folder: Path, target: str) -> None:
        """Write what pins the bug, of our kernels or of somebody's own, and an entry of a ledger.

        The kernels of a library get no pin, and ours no entry. If a file cannot be written, the
        report says so.
        """
        law, case, symptom = self.first.law, self.first.case, self.first.symptom
        told: dict[Path, str] = {}
        if target not in NAMES or target == "ours":
            place = "regressions/" if target == "ours" else "your regressions"
            module = "kernels." if target == "ours" else target.partition(":")[0]
            text = regression_file(case, law, module)
            path = folder / f"{self.name}.py"
            told[path] = _write(path, text, f"Written for {place}")
        if target != "ours" and symptom:
            what = f"An entry of the ledger with {symptom} would excuse it; written to"
            name = self.name if target in NAMES else f"{self.name}_entry"
            path = folder / f"{name}.py"
            told[path] = _write(path, entry_file(law, case, symptom), what)
        self.file = "\n".join(told.values()) or "No entry of a ledger excuses this."
        self.files = tuple(map(str, told))


def _write(path: Path, text: str, what: str) -> str:
    """Write a file, and return the line that tells of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
        return f"{what}: {path}"
    except OSError as error:
        return f"Not written: {path}: {error.strerror}"


def _gravity(failure: Failure) -> tuple[Excess, int, int]:
    numbers, length = _size(failure.case)
    return failure.excess or Excess(""), -numbers, -length


def _size(case: Case) -> tuple[int, int]:
    """The numbers of a case's tensors, then the length of its description."""
    tokens = sum(case.lengths) + sum(case.key_lengths or ())
    return tokens * prod(case.dims.values()), len(case.to_json())
