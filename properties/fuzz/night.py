"""A night: jobs take turns at drawing cases until the time is up; each bug is told of once."""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import count as counting
from itertools import islice
from threading import RLock
from time import monotonic
from traceback import format_exc

from hypothesis import Phase, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from properties.cases.case import Case
from properties.device import resolve
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import Corpus
from properties.fuzz.log import Log, Tally
from properties.fuzz.worker import (
    HANGS,
    Answer,
    Failure,
    Judge,
    Origin,
    Stopped,
    Worker,
    without_interrupts,
)
from properties.jobs import Job, drawing
from properties.laws.signature import Signature
from properties.targets import Target, scope

EXAMPLES_PER_ROUND = 5
# Seconds that a round goes on to make failing cases smaller.
_SHRINKING = 60.0
# Seconds after the deadline in which rounds may come to their ends.
_GRACE = 30.0
# A job rests when its cases that hang or end their process have cost this part of what one case
# may take, and those of its kernel this part of the kernel's time.
_PATIENCE, _SHARE = 0.25, 0.25
_AGAIN = 3
# The law that says which results are wrong.
_ORACLE = "differential"
# The engine beside each.
_OTHER_ENGINE = {"simulator": "interpreter", "interpreter": "simulator", "cuda": "simulator"}


class Enough(BaseException):
    """Of making a failing case smaller, or of a job that rests. Hypothesis lets it pass."""


class Night:
    """Threads that draw cases, each with a worker that judges them.

    Args:
        minutes: after which no case is drawn any more; None where `examples` decides.
        tell: called with each bucket once, when it is as small as it gets.
    """

    def __init__(
        self,
        log: Log,
        whose: Target,
        origin: Origin,
        corpus: Corpus,
        *,
        minutes: float | None,
        examples: int | None,
        limit: float,
        shrink: bool,
        tell: Callable[[Bucket], None],
    ) -> None:
        self.log, self.whose, self.origin, self.corpus = log, whose, origin, corpus
        self.examples, self.limit, self.shrink, self.tell = examples, limit, shrink, tell
        self.started = monotonic() - log.seconds
        self.deadline = self.started + 60 * minutes if minutes is not None else None
        self.lock = RLock()
        self.kernels: dict[tuple[str, str], list[Job]] = {}
        for job in log.tallies:
            self.kernels.setdefault((job.op, job.mode), []).append(job)
        self.turns = islice(_turns([*log.tallies], log.seed), log.turns, None)
        self.workers: list[Judge] = []
        self.playing = 0
        self.stopped = False

    @property
    def elapsed(self) -> float:
        return monotonic() - self.started

    @property
    def overdue(self) -> bool:
        """Whether what was under way at the deadline has had its time as well."""
        return self.deadline is not None and monotonic() > self.deadline + _GRACE

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None where the number of examples decides."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    @property
    def over(self) -> bool:
        if self.stopped or all(map(self.rests, self.log.tallies)):
            return True
        if self.examples is not None:
            return self.log.total.examples + EXAMPLES_PER_ROUND * self.playing >= self.examples
        return self.left == 0.0

    @property
    def seconds_to_shrink(self) -> float:
        left = _SHRINKING if self.left is None else self.left
        return min(_SHRINKING, max(_SHRINKING / 6, left))

    def rests(self, job: Job) -> bool:
        """Whether others go on without a job: the suite fails in it, or it wastes their time."""
        tally = self.log.tallies[job]
        if tally.broken or tally.lost <= _PATIENCE * self.limit:
            return tally.broken
        alike = self.kernels[job.op, job.mode]
        kernel = sum((self.log.tallies[one] for one in alike), Tally())
        return kernel.lost > _SHARE * kernel.seconds

    def start(self, workers: Sequence[Judge]) -> list[Future[None]]:
        """Begin, with a lane for each worker; each future ends when its lane has."""
        with without_interrupts():
            self.workers = [*workers]
            threads = ThreadPoolExecutor(len(workers))
            running = [threads.submit(self._lane, worker) for worker in workers]
        threads.shutdown(wait=False)
        return running

    def stop(self) -> None:
        """End it now. Buckets that are not told of yet are told of as they are."""
        self.stopped = True
        # Others may leave the list meanwhile.
        for worker in [*self.workers]:
            worker.stop()

    def _lane(self, worker: Judge) -> None:
        try:
            while not worker.stopped and (turn := self._next()) is not None:
                try:
                    _Round(self, worker, *turn).play()
                finally:
                    with self.lock:
                        self.playing -= 1
        finally:
            worker.close()

    def _next(self) -> tuple[Job, int] | None:
        """The next job and the number of its lap, until the night is over."""
        with self.lock:
            while not self.over:
                lap, job = next(self.turns)
                self.log.turns += 1
                if not self.rests(job):
                    self.playing += 1
                    self.log.latest = job
                    return job, lap
        return None


class _Round:
    """A few cases of one job, and the smaller ones that follow from those that fail.

    Args:
        found: the buckets of this round. Hypothesis is not told of failures of another bucket.
        until: when no case is made smaller any more.
    """

    def __init__(self, night: Night, worker: Judge, job: Job, lap: int) -> None:
        self.night, self.worker, self.job, self.lap = night, worker, job, lap
        self.log = night.log
        self.found: list[Bucket] = []
        self.until = float("inf")
        self.elsewhere: dict[str, _Elsewhere] = {}

    def play(self) -> None:
        try:
            if self.lap == 0:
                with suppress(Enough):
                    self._try_kept()
            self._draw()
            for bucket in list(self.found):
                self._link(bucket)
            for bucket in self.found:
                bucket.again = self._again(bucket)
        except Stopped:
            pass
        except Exception:
            # The suite's own: other jobs go on.
            with self.night.lock:
                self.log.errors[format_exc()] += 1
                # But not where this worker alone cannot go on.
                self.log.tallies[self.job].broken = not self.worker.stopped
        finally:
            for second in self.elsewhere.values():
                second.close()
            for bucket in self.found:
                for failure in bucket.smallest:
                    self.night.corpus.keep(self.job, failure.case, float("inf"))
                self.night.tell(bucket)

    def _try_kept(self) -> None:
        """Try what earlier nights have kept, if it is a case still."""
        for worst, case in self.night.corpus.entries(self.job):
            try:
                scope.check(self.night.whose, case)
            except ValueError:
                self.night.corpus.drop(self.job, case)
                continue
            if self._judge(case) is None and worst == float("inf"):
                self.night.corpus.drop(self.job, case)

    def _draw(self) -> None:
        nightly = settings.get_profile("nightly")
        phases = {Phase.generate} | ({Phase.shrink} if self.night.shrink else set())
        limited = settings(
            nightly,
            max_examples=EXAMPLES_PER_ROUND,
            phases=[phase for phase in nightly.phases if phase in phases],
            database=self.night.corpus.database,
        )
        test = drawing(self.job, self.night.whose, self._check)
        # The buckets have what is raised.
        with suppress(Found, Flaky, BaseExceptionGroup, Enough):
            # In this order: a seed alone switches the database off.
            limited(seeded(lap_seed(self.log.seed, self.lap))(test))()

    def _check(self, bundle: Sequence[Case]) -> None:
        """What Hypothesis calls with a bundle of cases."""
        for failure in map(self._judge, bundle):
            # A smaller case that hangs would take as long.
            if failure is not None and not failure.fatal and self._has_found(failure.signature):
                self.until = min(self.until, monotonic() + self.night.seconds_to_shrink)
                raise type_of(failure.signature)

    def _judge(self, case: Case) -> Failure | None:
        """Judge a case and keep the books."""
        shrinking = self.until < float("inf")
        if monotonic() > self.until or self.night.rests(self.job):
            raise Enough
        started = monotonic()
        answer = self._sure(case)
        seconds = monotonic() - started
        failure = answer.failure
        tally = Tally(
            examples=int(not shrinking),
            seconds=seconds,
            worst=answer.worst,
            failed=int(failure is not None and not shrinking),
            lost=seconds if failure is not None and failure.fatal else 0.0,
        )
        with self.night.lock:
            self.log.add(self.job, tally, self.night.elapsed)
            self.log.excused.update(answer.excused)
            if failure is None:
                self.night.corpus.keep(self.job, case, answer.worst)
                return None
            bucket = self.log.bucket(failure.signature, *failure.also)
            if bucket is None:
                bucket = Bucket([failure], found=self.night.elapsed)
                self.found.append(bucket)
                self.log.buckets.append(bucket)
            bucket.add(failure)
            bucket.seen[self.job.name] += not shrinking
        return failure

    def _has_found(self, signature: Signature) -> bool:
        return any(bucket.has(signature) for bucket in self.found)

    def _link(self, bucket: Bucket) -> None:
        """Ask of a case that breaks another law what the oracle says: it may be a known bug."""
        failure = bucket.first
        laws = scope.laws(self.night.whose, failure.case.op, failure.case.mode)
        if failure.signature.place or failure.fatal:
            return
        if failure.law == _ORACLE or _ORACLE not in laws:
            return
        differs = self.worker.ask(_ORACLE, failure.case).failure
        if differs is None or differs.fatal:
            return
        shown = differs.signature, *differs.also
        with self.night.lock:
            known = self.log.bucket(*shown)
            bucket.linked.update(shown)
            if known is not None and known is not bucket:
                known.absorb(bucket)
                self.log.buckets.remove(bucket)
                self.found.remove(bucket)

    def _sure(self, case: Case) -> Answer:
        """Judge a case; where the machine may be at fault, until it fails in one way twice.

        In fresh processes, with the time that compilation takes. A known bug is believed. What
        hangs is tried on the second engine meanwhile, which would take as long again.
        """
        doubts: dict[str, Failure | None] = {}
        answer = self.worker.ask(self.job.law, case)
        while answer.doubtful and answer.doubtful not in doubts and not self._knows(answer.failure):
            doubts[answer.doubtful] = answer.failure
            if answer.doubtful == HANGS:
                self._begin_elsewhere(self.job.law, case)
            answer = self.worker.ask(self.job.law, case)
        doubts.pop(answer.doubtful, None)
        hung = doubts.get(HANGS)
        if hung is not None and answer.failure is not None:
            # What comes to an error when it is given the time, as a loop does at the simulator's
            # limit of turns, is one bug that looks like either.
            del doubts[HANGS]
            failure = replace(answer.failure, also=(*answer.failure.also, hung.signature))
            answer = replace(answer, failure=failure)
        with self.night.lock:
            self.log.unrepeated.update(doubts.keys())
        return answer

    def _knows(self, failure: Failure | None) -> bool:
        with self.night.lock:
            return failure is not None and self.log.bucket(failure.signature) is not None

    def _again(self, bucket: Bucket) -> tuple[str, ...]:
        """Where a bug is seen again."""
        law, case = bucket.first.law, bucket.first.case
        second = self._begin_elsewhere(law, case)
        if bucket.first.fatal:
            first = "  again     in a fresh process as well"
        else:
            self.worker.restart()
            times = sum(_shows(self.worker.ask(law, case), bucket) for _ in range(_AGAIN))
            first = f"  again     {times} of {_AGAIN} times in a fresh process"
        answer = second.asked.result()
        if _shows(answer, bucket):
            also = "too"
        else:
            also = "takes too long to tell" if answer.doubtful == HANGS else "does not show it"
        return first, f"  engines   the {second.beside}; the {second.engine} {also}"

    def _begin_elsewhere(self, law: str, case: Case) -> "_Elsewhere":
        """Begin to judge a case on the second engine, if that has not begun."""
        key = f"{law} {case.to_json()}"
        if key not in self.elsewhere:
            self.elsewhere[key] = _Elsewhere(self.night, law, case)
        return self.elsewhere[key]


class _Elsewhere:
    """A case on the engine beside a night's own, in a process and a thread for it alone.

    Args:
        asked: what comes of it.
    """

    def __init__(self, night: Night, law: str, case: Case) -> None:
        self.night = night
        self.beside = resolve(night.origin.device)
        self.engine = _OTHER_ENGINE[self.beside]
        self.worker = Worker(replace(night.origin, device=self.engine), night.limit)
        night.workers.append(self.worker)
        self.worker.stopped = night.stopped
        self.thread = ThreadPoolExecutor(1)
        self.asked: Future[Answer] = self.thread.submit(self.worker.ask, law, case)

    def close(self) -> None:
        """Wait for no answer any more."""
        self.worker.stop()
        self.thread.shutdown()
        self.worker.close()
        self.night.workers.remove(self.worker)


def _shows(answer: Answer, bucket: Bucket) -> bool:
    """Whether the first case of a bucket, judged again, shows its bug again."""
    again = answer.failure
    if again is None:
        return False
    # An engine that runs a kernel line by line hangs at another line than one that compiles it.
    alike = again.hangs and bucket.first.hangs
    return alike or any(map(bucket.has, (again.signature, *again.also)))


class Found(AssertionError):
    """A case that fails, as Hypothesis sees it.

    Hypothesis takes failures for one bug if their exceptions are of one type and raised at one
    line. All are raised at one line here, so that each signature has a type of its own.
    """


@cache
def type_of(signature: Signature) -> type[Found]:
    return type("Found", (Found,), {"__doc__": str(signature)})


def lap_seed(seed: int, lap: int) -> int:
    """That of a lap of a run: of no other lap and no other run, of a neighbouring seed neither."""
    return random.Random(f"{seed} {lap}").randrange(2**31)


def _turns(jobs: Sequence[Job], seed: int) -> Iterator[tuple[int, Job]]:
    """Every job once per lap, in a new order each time: a short run is a fair sample too."""
    shuffler = random.Random(seed)
    for lap in counting():
        yield from ((lap, job) for job in shuffler.sample(jobs, len(jobs)))
