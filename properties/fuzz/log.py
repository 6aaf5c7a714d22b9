"""What a night has come to so far: all that is shown of it, and all that is needed to go on."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from properties.case import Case
from properties.files import write_whole
from properties.fuzz.bucket import Bucket
from properties.fuzz.record import Key, Row
from properties.fuzz.worker import Failure
from properties.jobs import Job
from properties.laws.signature import Signature

_FILE = "night.json"


@dataclass
class Tally:
    """What came of some cases.

    Args:
        seconds: that workers took for them.
        worst: largest error as a fraction of its budget.
        failed: how many broke a law, in whatever way.
        fatal: how many hung or ended their process.
    """

    examples: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    failed: int = 0
    fatal: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.examples + other.examples,
            self.seconds + other.seconds,
            max(self.worst, other.worst),
            self.failed + other.failed,
            self.fatal + other.fatal,
        )


@dataclass
class Log:
    """A night so far.

    Args:
        target: whose kernels.
        tallies: by job; in the order of the catalogue.
        buckets: what was found.
        turns: that jobs have taken.
        seconds: that the night has taken.
        excused: known failure of the target → how many examples showed it.
        unrepeated: how a case failed that did not do so again → how often.
        errors: tracebacks of the suite's own errors.
        latest: the job that drew last.
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
    latest: Job | None = None

    @property
    def total(self) -> Tally:
        return sum(self.tallies.values(), Tally())

    def bucket(self, *signatures: Signature) -> Bucket | None:
        """The bucket of a bug that shows one of these signatures."""
        for bucket in self.buckets:
            if any(map(bucket.has, signatures)):
                return bucket
        return None

    def rows(self) -> dict[tuple[str, str], Tally]:
        """Tallies by op and law."""
        return self._summed((job.op, job.law) for job in self.tallies)

    def record(self, device: str) -> dict[Key, Row]:
        """Of every op and dtype the examples and the worst error, for `properties.fuzz.record`."""
        summed = self._summed((job.op, job.dtype) for job in self.tallies)
        rows = (
            Row(op, dtype, device, tally.examples, round(tally.worst, 3))
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
        """Keep it in a folder, for `read`."""
        said = {
            "target": self.target,
            "seed": self.seed,
            "turns": self.turns,
            "seconds": self.seconds,
            "tallies": [[asdict(job), asdict(tally)] for job, tally in self.tallies.items()],
            "buckets": [_said(bucket) for bucket in self.buckets],
            "excused": self.excused,
            "unrepeated": self.unrepeated,
            "errors": self.errors,
        }
        write_whole(folder / _FILE, json.dumps(said, indent=1))

    @classmethod
    def read(cls, folder: Path) -> "Log | None":
        """The night that was kept in a folder; None if none was.

        Raises:
            ValueError: the file is not one of this kind.
        """
        path = folder / _FILE
        if not path.exists():
            return None
        try:
            said: dict[str, Any] = json.loads(path.read_text())
            said["buckets"] = [_heard(bucket) for bucket in said["buckets"]]
            said["tallies"] = {Job(**job): Tally(**tally) for job, tally in said["tallies"]}
            counts = {n: Counter(said[n]) for n in ("excused", "unrepeated", "errors")}
            return cls(**said | counts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}, expected a night that was kept here: {error!r}") from error


def _said(bucket: Bucket) -> dict[str, Any]:
    smallest = [
        asdict(failure) | {"case": json.loads(failure.case.to_json())}
        for failure in bucket.smallest
    ]
    linked = [asdict(one) for one in bucket.linked]
    return {**vars(bucket), "smallest": smallest, "linked": linked}


def _heard(said: dict[str, Any]) -> Bucket:
    return Bucket(
        smallest=[_failure(**one) for one in said["smallest"]],
        linked={Signature(**one) for one in said["linked"]},
        seen=Counter(said["seen"]),
        again=tuple(said["again"]),
        file=said["file"],
    )


def _failure(
    signature: dict[str, str], case: dict[str, Any], also: list[dict[str, str]], **rest: Any
) -> Failure:
    return Failure(
        signature=Signature(**signature),
        case=Case.from_json(json.dumps(case)),
        also=tuple(Signature(**one) for one in also),
        **rest,
    )
