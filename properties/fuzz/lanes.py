"""The threads of a night: jobs take turns in them, each with a worker of its thread."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice, zip_longest
from itertools import count as counting
from time import monotonic

from properties.fuzz.answer import Judge
from properties.fuzz.fork_server import LOOK, end_server, without_interrupts
from properties.fuzz.log import ORACLE
from properties.fuzz.night import Night
from properties.fuzz.turn import Turn
from properties.jobs import Job

# Seconds that drawing a case may take, and the drawing of the last one once the night is stopped,
# without waits for a core.
_DRAWING, _LAST = 60.0, 5.0


class Lanes:
    """Threads in which jobs take turns, until the night is over."""

    def __init__(self, night: Night) -> None:
        self.night, self.log = night, night.log
        self.order = islice(_turns([*night.log.tallies], night.log.seed), night.log.turns, None)
        self.turns: list[Turn] = []
        self.running: list[Future[None]] = []

    def start(self, workers: Sequence[Judge]) -> None:
        """Start a thread for each worker."""
        with without_interrupts():
            self.night.workers = [*workers]
            threads = ThreadPoolExecutor(len(workers), "lane")
            self.running = [threads.submit(self._lane, worker) for worker in workers]
        threads.shutdown(wait=False)

    @property
    def ended(self) -> bool:
        """Whether all threads have ended, or are not waited for any more."""
        return all(lane.done() for lane in self.running) or self.night.abandoned

    def check(self) -> None:
        """Raise the error that ended a thread, if there is one."""
        for lane in self.running:
            if lane.done():
                lane.result()

    def watch(self) -> None:
        """End what takes too long outside the processes that run cases."""
        night = self.night
        if night.overdue and not night.stopped:
            night.stop()
        limit = _LAST if night.stopped else _DRAWING
        for turn in [*self.turns]:
            turn.end_drawing(limit)
        if monotonic() > night.stopped_at + LOOK:
            # A thread may wait for a process that takes long to start.
            end_server()

    def _lane(self, worker: Judge) -> None:
        try:
            while not worker.stopped and (following := self._next()) is not None:
                turn = Turn(self.night, worker, *following)
                self.turns.append(turn)
                try:
                    turn.play()
                finally:
                    self.turns.remove(turn)
                    with self.night.lock:
                        self.night.playing -= 1
        finally:
            worker.close()

    def _next(self) -> tuple[Job, int] | None:
        """The next job and its lap number, until the night is over."""
        with self.night.lock:
            while not self.night.over:
                lap, job = next(self.order)
                self.log.turns += 1
                if not self.night.rests(job):
                    self.night.playing += 1
                    self.log.latest = job
                    return job, lap
        return None


def _turns(jobs: Sequence[Job], seed: int) -> Iterator[tuple[int, Job]]:
    """Every job once per lap, each time in a new order, so that a short run is a fair sample.

    Few jobs have a turn in an hour. So every other turn compares with the oracle, which finds most
    bugs, until all such jobs had theirs, and each mode has a turn before another dtype has one.
    """
    shuffler = random.Random(seed)
    for lap in counting():
        order = shuffler.sample(jobs, len(jobs))
        compared = _spread(job for job in order if job.law == ORACLE)
        others = _spread(job for job in order if job.law != ORACLE)
        pairs = chain.from_iterable(zip_longest(compared, others))
        yield from ((lap, job) for job in pairs if job is not None)


def _spread(jobs: Iterable[Job]) -> list[Job]:
    """Order jobs so that each mode has one before any has a second."""
    had: Counter[tuple[str, str]] = Counter()

    def place(job: Job) -> int:
        had[job.op, job.mode] += 1
        return had[job.op, job.mode]

    return sorted(jobs, key=place)
