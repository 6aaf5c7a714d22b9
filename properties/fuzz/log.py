"""The log of a night: everything that is displayed or needed to resume it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, zip_longest
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

from properties.cases.case import Case
from properties.files import write_atomically
from properties.fuzz.answer import Answer, Failure
from properties.fuzz.bucket import Bucket
from properties.fuzz.cause import Cause, causes
from properties.fuzz.reading import read_fields
from properties.fuzz.record import Key, Record
from properties.jobs import Job
from properties.laws.fingerprint import Fingerprint

# The law that names the wrong results.
ORACLE = "differential"
_FILE = "night.json"
# The most buckets of one fingerprint.
_ALIKE = 4
# Bins of a history; when they are full, each takes twice the time.
_BINS = 240
# Lines as they take the least room: file → numbers.
_Lines = dict[str, list[int]]


@dataclass
class Tally:
    """Counts of some cases.

    Args:
        seconds: that workers took.
        worst: largest error as a fraction of its budget.
        failed: cases that broke a law in any way.
        lost: seconds of cases that hung or ended their process.
        broken: the suite itself failed, or the target's adapter.
        unjudged: examples that passed only when repeated, or not at all, as the machine may be at
            fault.
    """

    examples: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    failed: int = 0
    lost: float = 0.0
    broken: bool = False
    unjudged: int = 0

    @property
    def judged(self) -> int:
        return self.examples - self.unjudged

    @property
    def untested(self) -> bool:
        return self.unjudged > self.judged

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.examples + other.examples,
            self.seconds + other.seconds,
            max(self.worst, other.worst),
            self.failed + other.failed,
            self.lost + other.lost,
            self.broken or other.broken,
            self.unjudged + other.unjudged,
        )


@dataclass
class History:
    """Counts by the time at which cases were judged.

    Args:
        step: seconds of a bin.
        bins: for each bin, op → counts.
    """

    step: float = 10.0
    bins: list[dict[str, Tally]] = field(default_factory=list)

    def add(self, seconds: float, op: str, tally: Tally) -> None:
        place = int(seconds / self.step)
        while place >= _BINS:
            pairs = zip_longest(self.bins[::2], self.bins[1::2], fillvalue=dict[str, Tally]())
            self.bins = [_joined(first, second) for first, second in pairs]
            self.step *= 2
            place = int(seconds / self.step)
        self.bins += [{} for _ in range(place + 1 - len(self.bins))]
        self.bins[place] = _joined(self.bins[place], {op: tally})


def _joined(first: dict[str, Tally], second: dict[str, Tally]) -> dict[str, Tally]:
    return first | {op: first.get(op, Tally()) + tally for op, tally in second.items()}


@dataclass
class Log:
    """A night so far.

    Args:
        target: whose kernels.
        tallies: by job, in the order of the catalogue.
        buckets: the bugs found.
        turns: how many turns jobs have taken.
        seconds: how long the night has taken.
        excused: known failure of the target → examples that showed it.
        unrepeated: description of a failure that did not repeat, or that another process caused →
            how often.
        errors: tracebacks of errors of the suite, or of a target's adapter where cases are drawn.
        changed: files of modules that were written meanwhile, which new processes then load.
        history: of all jobs together.
        latest: the job that drew last.
        ran: op → the lines and functions of its cases which failed or met the oracle.
    """

    target: str
    seed: int
    tallies: dict[Job, Tally]
    buckets: list[Bucket] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0
    excused: Counter[str] = field(default_factory=Counter)
    unrepeated: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    changed: set[str] = field(default_factory=set)
    history: History = field(default_factory=History)
    latest: Job | None = None
    ran: dict[str, set[str]] = field(default_factory=dict)

    @property
    def total(self) -> Tally:
        return sum(self.tallies.values(), Tally())

    @property
    def causes(self) -> list[Cause]:
        """Source lines that explain several buckets."""
        return causes(self.buckets, self.ran)

    @property
    def bug_count(self) -> int:
        """The number of buckets, where those of one cause count once."""
        return len(self.buckets) - sum(len(cause.buckets) - 1 for cause in self.causes)

    def bucket(
        self,
        *fingerprints: Fingerprint,
        lines: frozenset[str] = frozenset(),
        case: Case | None = None,
    ) -> Bucket | None:
        """The bucket whose bug a case with these fingerprints shows; see `Bucket.shows`.

        Of several it is the one that needs most, then the oldest.
        """
        shown = [bucket for bucket in self.buckets if bucket.shows(fingerprints, lines, case)]
        return max(shown, key=lambda bucket: len(bucket.needs), default=None)

    def of_failure(self, failure: Failure, lines: frozenset[str]) -> Bucket | None:
        """The bucket of a failure whose case launched some lines, if there is one.

        Several that need different parts of a case may be as many bugs that make one result wrong,
        or cases at the edge of an error budget, so there are at most `_ALIKE`.
        """
        shown = failure.fingerprints
        bucket = self.bucket(*shown, lines=lines, case=failure.case)
        alike = [known for known in self.buckets if known.shows(shown, lines)]
        return alike[0] if bucket is None and len(alike) >= _ALIKE else bucket

    def as_unsteady(self, bucket: Bucket) -> Bucket | None:
        """Another bucket of the same wrong result, if neither repeats each time.

        Then chance decides which law meets the bug, and no other law can be asked about its case.
        """
        alike = (known for known in self.buckets if known is not bucket)
        return next((known for known in alike if known.is_as_unsteady_as(bucket)), None)

    def is_full(self, fingerprint: Fingerprint) -> bool:
        """Whether a fingerprint has as many buckets as there may be."""
        return sum(known.has(fingerprint) for known in self.buckets) >= _ALIKE

    def open(self, failure: Failure, seconds: float, needs: Sequence[str] = ()) -> Bucket:
        """Add a bucket with a name of its own, found so many seconds into the night."""
        bucket = Bucket([failure], found=seconds, needs=tuple(needs))
        taken = {known.name for known in self.buckets}
        names = (f"{bucket.name}_{n}" if n > 1 else bucket.name for n in count(1))
        bucket.name = next(name for name in names if name not in taken)
        self.buckets.append(bucket)
        return bucket

    def merge(self, without: Sequence[Bucket] = ()) -> None:
        """Merge each bucket into the oldest one of the same bug.

        Some case may have shown two bugs of earlier rounds to be one.

        Args:
            without: those that somebody still works on.
        """
        while pair := next(self._of_one_bug(without), None):
            older, newer = pair
            older.absorb(newer)
            self.buckets.remove(newer)

    def _of_one_bug(self, without: Sequence[Bucket]) -> Iterator[tuple[Bucket, Bucket]]:
        for newer in self.buckets:
            lines, case = newer.lines or frozenset(), newer.first.case
            older = self.bucket(*newer.fingerprints, lines=lines, case=case)
            if older is not None and older is not newer and not {older, newer} & {*without}:
                yield older, newer

    def noted(self, op: str, answer: Answer) -> None:
        """Note what a case of an op ran: for every bucket, `causes` wants what its cases ran."""
        self.ran.setdefault(op, set()).update(answer.lines | answer.functions)

    def add(self, job: Job, tally: Tally, seconds: float) -> None:
        """Add the counts of a job, so many seconds into the night."""
        self.tallies[job] += tally
        self.history.add(seconds, job.op, tally)

    def judged(self, job: Job, answer: Answer, tally: Tally, seconds: float) -> None:
        """Add the answer and the counts of a job's case, so many seconds into the night."""
        self.add(job, tally, seconds)
        if job.law == ORACLE or answer.failure is not None:
            # Most other laws hold for results that are wrong in the same way each time.
            self.noted(job.op, answer)
        self.excused.update(answer.excused)

    @property
    def untested(self) -> dict[str, int]:
        """Kernels of whose examples less than half were judged → the others."""
        kernels = self._summed((job.op, job.mode) for job in self.tallies)
        return {
            f"{op} ({mode})": tally.unjudged
            for (op, mode), tally in kernels.items()
            if tally.untested
        }

    @property
    def failed(self) -> bool:
        return bool(self.buckets or self.errors or self.untested or not self.total.judged)

    def rows(self) -> dict[tuple[str, str], Tally]:
        return self._summed((job.op, job.law) for job in self.tallies)

    def record(self, device: str) -> dict[Key, Record]:
        """Examples and worst error of each op and dtype, for `properties.fuzz.record`."""
        summed = self._summed((job.op, job.dtype) for job in self.tallies)
        rows = (
            Record(op, dtype, device, tally.examples, round(tally.worst, 3))
            for (op, dtype), tally in summed.items()
            if tally.examples
        )
        return {row.key: row for row in rows}

    def _summed(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Tally]:
        summed: dict[tuple[str, str], Tally] = {}
        for key, tally in zip(keys, self.tallies.values(), strict=True):
            summed[key] = summed.get(key, Tally()) + tally
        return summed

    def write(self, folder: Path) -> None:
        data = {
            "target": self.target,
            "seed": self.seed,
            "turns": self.turns,
            "seconds": self.seconds,
            "tallies": [[asdict(job), asdict(tally)] for job, tally in self.tallies.items()],
            "buckets": [_bucket_to_json(bucket) for bucket in self.buckets],
            "excused": self.excused,
            "unrepeated": self.unrepeated,
            "errors": self.errors,
            "changed": sorted(self.changed),
            "history": asdict(self.history),
            "ran": {op: _lines_to_json(lines) for op, lines in self.ran.items()},
        }
        write_atomically(folder / _FILE, json.dumps(data, indent=1))

    @classmethod
    def read(cls, folder: Path) -> "Log | None":
        """Read a log from a folder; None if there is none.

        Raises:
            ValueError: the file is not a log.
        """
        path = folder / _FILE
        if not path.exists():
            return None
        compact = {"tallies": list[tuple[Job, Tally]], "ran": dict[str, _Lines]}
        kinds = get_type_hints(cls) | {"buckets": list[Any], **compact}
        try:
            data = read_fields(json.loads(path.read_text()), kinds, cls, "night")
            buckets = enumerate(data.get("buckets", ()))
            data["buckets"] = [_bucket_from_json(one, f"buckets[{n}]") for n, one in buckets]
            data["tallies"] = dict(data["tallies"])
            data["ran"] = {
                op: {*_lines_from_json(files)} for op, files in data.get("ran", {}).items()
            }
            log = cls(**data)
            _expect_number("turns", log.turns)
            _expect_number("seconds", log.seconds)
            _expect_number("history.step", log.history.step, 1)
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}, expected a night that was kept here: {error}") from error
        return log


def _bucket_to_json(bucket: Bucket) -> dict[str, Any]:
    smallest = [_failure_to_json(failure) for failure in bucket.smallest]
    worst = bucket.worst and _failure_to_json(bucket.worst)
    linked = [asdict(one) for one in bucket.linked]
    lines = None if bucket.lines is None else _lines_to_json(bucket.lines)
    functions = sorted(bucket.functions)
    kept = {"smallest": smallest, "worst": worst, "linked": linked}
    return {**vars(bucket), **kept, "lines": lines, "functions": functions}


def _failure_to_json(failure: Failure) -> dict[str, Any]:
    return asdict(failure) | {"case": json.loads(failure.case.to_json())}


def _lines_to_json(lines: Iterable[str]) -> _Lines:
    files: _Lines = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number))
    return files


def _lines_from_json(files: _Lines) -> Iterator[str]:
    for file, numbers in files.items():
        yield from (f"{file}:{number}" for number in numbers)


def _bucket_from_json(data: Any, name: str) -> Bucket:
    kinds = get_type_hints(Bucket) | {"lines": _Lines | None}
    given = read_fields(data, kinds, Bucket, name)
    if given.get("lines") is not None:
        given["lines"] = frozenset(_lines_from_json(given["lines"]))
    if not given["smallest"]:
        raise ValueError(f"{name}.smallest: [], expected a failure")
    bucket = Bucket(**given)
    _expect_number(f"{name}.found", bucket.found)
    return bucket


def _expect_number(name: str, number: float, least: float = 0) -> None:
    if not least <= number < inf:
        raise ValueError(f"{name}: {number!r}, expected a finite number of at least {least}")
