"""A night: the log and limits that its turns share, and its end."""

import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from time import monotonic

from properties.fuzz.answer import Judge, Origin
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import Corpus
from properties.fuzz.log import Log, Tally
from properties.jobs import Job
from properties.laws.fingerprint import short
from properties.targets import Target

EXAMPLES_OF_A_TURN = 5
# Seconds that a turn may spend on shrinking.
_SHRINKING = 60.0
# Seconds after the deadline for turns to finish.
_GRACE = 30.0
# A job rests once its cases that hang or end their process have cost `_PATIENCE` of a case's time
# limit, and those of its kernel `_SHARE` of the kernel's time.
_PATIENCE, _SHARE = 0.25, 0.25


class Night:
    """The log, the limits and the end of a night, which its turns share.

    Args:
        target: whose kernels are fuzzed.
        minutes: when to stop drawing; None if `examples` decides.
        limit: seconds that a case may take.
        tell: called once with each bucket, after shrinking.

    Attributes:
        held: the buckets that turns still work on, by turn.
        playing: how many turns are being taken.
        cut_off: job → the line that repeats its case, which the end of the grace period cut off.
        met_once: op, mode and how a case ended → cases that did so and passed when repeated.
        written: when the files of all imported modules were written.
    """

    def __init__(
        self,
        log: Log,
        target: Target,
        origin: Origin,
        corpus: Corpus,
        *,
        minutes: float | None,
        examples: int | None,
        limit: float,
        shrink: bool,
        tell: Callable[[Bucket], None],
    ) -> None:
        self.log, self.target, self.origin, self.corpus = log, target, origin, corpus
        self.examples, self.limit, self.shrink, self.tell = examples, limit, shrink, tell
        self.started = monotonic() - log.seconds
        self.deadline = self.started + 60 * minutes if minutes is not None else None
        self.lock = RLock()
        self.kernels: dict[tuple[str, str], list[Job]] = {}
        for job in log.tallies:
            self.kernels.setdefault((job.op, job.mode), []).append(job)
        self.workers: list[Judge] = []
        self.held: list[list[Bucket]] = []
        self.playing = 0
        self.cut_off: dict[str, str] = {}
        self.met_once: Counter[tuple[str, str, str]] = Counter()
        self.stopped_at = float("inf")
        files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
        self.written = {file: _written(file) for file in files if isinstance(file, str)}

    @property
    def elapsed(self) -> float:
        return monotonic() - self.started

    @property
    def stopped(self) -> bool:
        return self.stopped_at < float("inf")

    @property
    def abandoned(self) -> bool:
        """Whether threads go on long after the night was stopped, as only compiled code can."""
        return monotonic() > self.stopped_at + _GRACE

    @property
    def overdue(self) -> bool:
        """Whether the grace period after the deadline is over too."""
        return self.deadline is not None and monotonic() > self.deadline + _GRACE

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None if the number of examples decides."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    @property
    def over(self) -> bool:
        if self.stopped or all(map(self.rests, self.log.tallies)):
            return True
        if self.examples is not None:
            return self.log.total.examples + EXAMPLES_OF_A_TURN * self.playing >= self.examples
        return self.left == 0.0

    def seconds_to_shrink(self, rest: float = math.inf) -> float:
        """How long a turn may make a case smaller, at most the rest of what it had."""
        left = min(rest, _SHRINKING if self.left is None else self.left)
        return min(_SHRINKING, max(_SHRINKING / 6, left))

    def rests(self, job: Job) -> bool:
        """Whether a job is skipped: the suite fails in it, or it wastes the time of others."""
        tally = self.log.tallies[job]
        if tally.broken or tally.lost <= _PATIENCE * self.limit:
            return tally.broken
        alike = self.kernels[job.op, job.mode]
        kernel = sum((self.log.tallies[other] for other in alike), Tally())
        return kernel.lost > _SHARE * kernel.seconds

    def note_changes(self) -> None:
        """Note which files were edited, or replaced by those of another commit."""
        changed = {short(file) for file, at in self.written.items() if _written(file) != at}
        with self.lock:
            self.log.changed |= changed

    def stop(self) -> None:
        """Stop now. Buckets not reported yet are reported as they are."""
        self.stopped_at = min(self.stopped_at, monotonic())
        # Threads may leave the list meanwhile.
        for worker in [*self.workers]:
            worker.stop()


def _written(file: str) -> int | None:
    """When a file was written; None if there is none."""
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return None
