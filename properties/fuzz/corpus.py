"""Cases that the next night tries first, kept in Hypothesis' database."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from properties.cases.case import Case
from properties.jobs import Job

FOLDER = Path(".hypothesis") / "examples"
_MOST = 3


class _Folder(DirectoryBasedExampleDatabase):
    """A folder that may be full, or another user's: what it refuses is not kept."""

    def fetch(self, key: bytes) -> Iterator[bytes]:
        with suppress(OSError):
            yield from super().fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        # Without room for temporary files, Hypothesis would leave two of them open.
        with suppress(OSError), TemporaryFile(buffering=0) as tried:
            tried.write(value)
            super().save(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        with suppress(OSError):
            super().move(src, dest, value)


class Corpus:
    """For each job, the cases that found something and a few with the largest error / budget.

    They are kept as JSON, which does not depend on how cases are drawn.

    Args:
        target: its name.
    """

    def __init__(self, target: str, database: ExampleDatabase | None = None) -> None:
        self.target = target
        self.database = database or _Folder(FOLDER)
        self.least: dict[Job, float] = {}

    def entries(self, job: Job) -> list[tuple[float, Case]]:
        """A job's cases with their error / budget; those that found something come first."""
        return [(worst, case) for worst, case, _ in self._entries(job)]

    def keep(self, job: Job, case: Case, worst: float) -> None:
        """Keep a case that broke a law, or is among those with the largest error of its job.

        Args:
            worst: error as a fraction of its budget; infinite if a law does not hold.
        """
        if worst <= self.least.get(job, 0.0):
            return
        entry = json.dumps({"worst": worst, "case": json.loads(case.to_json())}).encode()
        self.database.save(self._key(job), entry)
        passing = [row for row in self._entries(job) if row[0] < float("inf")]
        for _, _, superfluous in passing[_MOST:]:
            self.database.delete(self._key(job), superfluous)
        if len(passing) >= _MOST:
            self.least[job] = passing[_MOST - 1][0]

    def drop(self, job: Job, case: Case) -> None:
        for _, kept, entry in self._entries(job):
            if kept == case:
                self.database.delete(self._key(job), entry)

    def _entries(self, job: Job) -> list[tuple[float, Case, bytes]]:
        entries = []
        for entry in self.database.fetch(self._key(job)):
            try:
                data = json.loads(entry)
                case = Case.from_json(json.dumps(data["case"]))
                entries.append((float(data["worst"]), case, entry))
            except (ValueError, KeyError, TypeError):
                # An entry that this version cannot read.
                self.database.delete(self._key(job), entry)
        return sorted(entries, key=lambda row: (-row[0], row[2]))

    def _key(self, job: Job) -> bytes:
        return f"attention-oracles {self.target} {job.name}".encode()
