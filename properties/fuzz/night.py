"""A night: jobs take turns at drawing cases until the time is up; each bug is reported once."""

import ctypes
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice, zip_longest
from itertools import count as counting
from threading import RLock, get_ident
from time import monotonic
from traceback import extract_stack, format_exc, format_list

from hypothesis import Phase, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from properties import scope
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.device import resolve
from properties.fuzz.answer import HANGS, Answer, Failure, Judge, Lost, Origin, Stopped
from properties.fuzz.bucket import Bucket
from properties.fuzz.clock import Clock
from properties.fuzz.corpus import Corpus
from properties.fuzz.fork_server import end_server, without_interrupts
from properties.fuzz.log import Log, Tally
from properties.fuzz.needs import parts
from properties.fuzz.worker import Worker
from properties.jobs import Job, drawing
from properties.laws.fingerprint import Fingerprint, is_own
from properties.targets import Target

EXAMPLES_PER_ROUND = 5
# Seconds that a round may spend on shrinking.
_SHRINKING = 60.0
# Seconds after the deadline for rounds to finish.
_GRACE = 30.0
# Seconds that drawing a case may take, and the drawing of the last one once the night is stopped,
# without waits for a core.
_DRAWING, _LAST = 60.0, 5.0
# A job rests once its cases that hang or end their process have cost `_PATIENCE` of a case's time
# limit, and those of its kernel `_SHARE` of the kernel's time.
_PATIENCE, _SHARE = 0.25, 0.25
_AGAIN = 3
# The most buckets of one fingerprint.
_ALIKE = 4
# The names of a night's threads begin with it.
LANE = "lane"
# The law that names the wrong results.
_ORACLE = "differential"
# The second engine for each device.
_OTHER_ENGINE = {"simulator": "interpreter", "interpreter": "simulator", "cuda": "simulator"}


class Enough(BaseException):
    """Ends shrinking, or a resting job. Hypothesis does not catch it."""


class Endless(BaseException):
    """Ends drawing: what an adapter says of its bounds may never return."""


class Night:
    """Threads that draw cases, each with a worker that judges them.

    Args:
        minutes: when to stop drawing; None if `examples` decides.
        tell: called once with each bucket, after shrinking.
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
        self.rounds: list[_Round] = []
        self.playing = 0
        self.stopped_at = float("inf")

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
            return self.log.total.examples + EXAMPLES_PER_ROUND * self.playing >= self.examples
        return self.left == 0.0

    @property
    def seconds_to_shrink(self) -> float:
        left = _SHRINKING if self.left is None else self.left
        return min(_SHRINKING, max(_SHRINKING / 6, left))

    def rests(self, job: Job) -> bool:
        """Whether a job is skipped: the suite fails in it, or it wastes the time of others."""
        tally = self.log.tallies[job]
        if tally.broken or tally.lost <= _PATIENCE * self.limit:
            return tally.broken
        alike = self.kernels[job.op, job.mode]
        kernel = sum((self.log.tallies[one] for one in alike), Tally())
        return kernel.lost > _SHARE * kernel.seconds

    def start(self, workers: Sequence[Judge]) -> list[Future[None]]:
        """Start a thread for each worker; each future ends with its thread."""
        with without_interrupts():
            self.workers = [*workers]
            threads = ThreadPoolExecutor(len(workers), LANE)
            running = [threads.submit(self._lane, worker) for worker in workers]
        threads.shutdown(wait=False)
        return running

    def stop(self) -> None:
        """Stop now. Buckets not reported yet are reported as they are."""
        self.stopped_at = min(self.stopped_at, monotonic())
        # Threads may leave the list meanwhile.
        for worker in [*self.workers]:
            worker.stop()

    def watch(self) -> None:
        """End what takes too long outside the processes that run cases."""
        if self.overdue and not self.stopped:
            self.stop()
        limit = _LAST if self.stopped else _DRAWING
        for one in [*self.rounds]:
            one.end_drawing(limit)
        if self.stopped:
            # A thread may wait for a process that takes long to start.
            end_server()

    def _lane(self, worker: Judge) -> None:
        try:
            while not worker.stopped and (turn := self._next()) is not None:
                one = _Round(self, worker, *turn)
                self.rounds.append(one)
                try:
                    one.play()
                finally:
                    self.rounds.remove(one)
                    with self.lock:
                        self.playing -= 1
        finally:
            worker.close()

    def _next(self) -> tuple[Job, int] | None:
        """The next job and its lap number, until the night is over."""
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
    """A few cases of one job, and the shrinking of those that fail.

    Args:
        found: the buckets of this round. Hypothesis does not see failures of other buckets.
        until: when shrinking ends.
        drawing: since when no process works for it, as while a case is drawn; None while one does.
    """

    def __init__(self, night: Night, worker: Judge, job: Job, lap: int) -> None:
        self.night, self.worker, self.job, self.lap = night, worker, job, lap
        self.log = night.log
        self.found: list[Bucket] = []
        self.until = float("inf")
        self.drawing: Clock | None = None
        self.thread = get_ident()
        self.endless = ""
        self.elsewhere: dict[str, _Elsewhere] = {}

    def play(self) -> None:
        self.drawing = Clock.started(os.getpid())
        try:
            if self.lap == 0:
                with suppress(Enough):
                    self._try_kept()
            self._draw()
            for bucket in list(self.found):
                self._find_needs(bucket)
                self._link(bucket)
            self.drawing = None
            for bucket in self.found:
                bucket.again = self._again(bucket)
        except Stopped:
            pass
        except Endless:
            self._broken(self.endless)
        except Lost as error:
            self._broken(str(error))
        except BaseException:
            # An error of the suite, or of an adapter's bounds, which may exit. Other jobs continue,
            # unless only this worker cannot.
            self._broken(format_exc())
        finally:
            self.drawing = None
            for second in self.elsewhere.values():
                second.close()
            for bucket in self.found:
                for failure in bucket.smallest:
                    self.night.corpus.keep(self.job, failure.case, float("inf"))
                self.night.tell(bucket)
            with self.night.lock:
                held = [one.found for one in [*self.night.rounds] if one is not self]
                self.log.merge(without=[bucket for found in held for bucket in found])

    def end_drawing(self, limit: float) -> None:
        """Raise in the thread if it draws for longer, which no exception of its own will end."""
        clock = self.drawing
        if clock is None or monotonic() - clock.at < limit or clock.seconds() < limit:
            return
        if clock is not self.drawing:
            return
        self.drawing = None
        frame = sys._current_frames().get(self.thread)
        frames = [one for one in extract_stack(frame) if is_own(one.filename)] if frame else []
        where = "".join(format_list(frames[-3:]))
        self.endless = f"drawing a case of {self.job.name} takes over {limit:.0f} s, in\n{where}"
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(self.thread), ctypes.py_object(Endless))

    def _broken(self, error: str) -> None:
        with self.night.lock:
            self.log.errors[error] += 1
            self.log.tallies[self.job].broken = not self.worker.stopped

    def _try_kept(self) -> None:
        """Try the cases that earlier nights kept, if they are still valid."""
        for worst, case in self.night.corpus.entries(self.job):
            try:
                scope.check(self.night.whose, case)
            except ValueError:
                self.night.corpus.drop(self.job, case)
                continue
            if self._judge(case)[0] is None and worst == float("inf"):
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
        try:
            # The order matters: a seed alone switches the database off.
            limited(seeded(lap_seed(self.log.seed, self.lap, self.job))(test))()
        except (Found, Flaky, Enough):
            # Failures are in the buckets already.
            pass
        except BaseExceptionGroup as group:
            _, others = group.split((Found, Flaky))
            if others is not None:
                raise others from None

    def _check(self, bundle: Sequence[Case]) -> None:
        """Judge a bundle of cases for Hypothesis."""
        for failure, bucket in map(self._judge, bundle):
            # Shrinking a case that hangs would take as long each time.
            if failure and bucket and not failure.fatal and bucket in self.found:
                self.until = min(self.until, monotonic() + self.night.seconds_to_shrink)
                raise type_of(failure.fingerprint, bucket.needs)

    def _judge(self, case: Case) -> tuple[Failure, Bucket] | tuple[None, None]:
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
        needs = self._needs_beyond(failure, answer) if failure and not shrinking else ()
        with self.night.lock:
            self.log.add(self.job, tally, self.night.elapsed)
            if self.job.law == _ORACLE or failure is not None:
                # Most other laws hold for results that are wrong in the same way each time.
                self.log.noted(self.job.op, answer)
            self.log.excused.update(answer.excused)
            if failure is None:
                self.night.corpus.keep(self.job, case, answer.worst)
                return None, None
            bucket = self._bucket(failure, answer.lines)
            if bucket is None or needs:
                bucket = self.log.open(failure, self.night.elapsed, needs)
                self.found.append(bucket)
            bucket.add(failure)
            bucket.ran(answer.lines, answer.functions)
            # One that shows while another is made smaller counts at its first sight.
            bucket.seen[self.job.name] += not shrinking or not bucket.seen[self.job.name]
            shown = failure.fingerprint, *failure.also
            for other in list(self.found):
                alike = other.needs == bucket.needs and other.shows(shown, answer.lines)
                if other is not bucket and alike:
                    self._merge(bucket, other)
        return failure, bucket

    def _bucket(self, failure: Failure, lines: frozenset[str]) -> Bucket | None:
        """The bucket of a failure, if there is one.

        Several that need different parts of a case may be as many bugs that make one result wrong,
        or cases at the edge of an error budget, so there are at most `_ALIKE`.
        """
        shown = failure.fingerprint, *failure.also
        bucket = self.log.bucket(*shown, lines=lines, case=failure.case)
        alike = [one for one in self.log.buckets if one.shows(shown, lines)]
        return alike[0] if bucket is None and len(alike) >= _ALIKE else bucket

    def _needs_beyond(self, failure: Failure, answer: Answer) -> tuple[str, ...]:
        """Parts of a case that its failure needs and no case of its bucket had.

        A part that another failure could spare is tried again in a smaller case.
        """
        with self.night.lock:
            bucket = self._bucket(failure, answer.lines)
            alike = [one for one in self.log.buckets if one.has(failure.fingerprint)]
        if bucket is None or bucket in self.found or len(alike) >= _ALIKE:
            return ()
        named = failure.fingerprint.place or failure.fatal
        if named or not bucket.steady or not self.night.shrink:
            return ()
        had = {name for one in bucket.smallest for name in parts(one.case)}
        had |= set() if bucket.is_larger(failure) else {*bucket.spare}
        new = [name for name in parts(failure.case) if name not in had]
        needs = tuple(name for name in new if self._without(bucket, failure.case, name) is None)
        with self.night.lock:
            bucket.spare += tuple(name for name in new if name not in needs)
        return needs

    def _find_needs(self, bucket: Bucket) -> None:
        """Leave out each part of a bucket's case that it does not need, one after the other."""
        case = bucket.first.case
        if bucket.first.fingerprint.place or bucket.first.fatal or not self.night.shrink:
            return
        # The rest of the time for shrinking.
        left = max(self.until - monotonic(), _SHRINKING / 6)
        until = monotonic() + min(left, self.night.seconds_to_shrink)
        needs: list[str] = []
        tried: set[str] = set()
        while monotonic() < until and (rest := [n for n in parts(case) if n not in tried]):
            name = rest[0]
            tried.add(name)
            plainer = self._without(bucket, case, name)
            if plainer is None:
                needs.append(name)
            else:
                case = plainer
        with self.night.lock:
            bucket.needs = tuple(needs)

    def _without(self, bucket: Bucket, case: Case, name: str) -> Case | None:
        """A case without one of its parts; None if it shows a bucket's bug no longer.

        If that cannot be told, it is the case itself.
        """
        try:
            op = scope.declared(self.night.whose, case.op, case.mode)
            plainer = op.settle(parts(case)[name])
            scope.check(self.night.whose, plainer)
        except ValueError:
            return case
        answer = self._ask(bucket.first.law, plainer)
        failure = answer.failure
        if failure is None or not _shows(answer, bucket):
            return case if answer.excused else None
        with self.night.lock:
            bucket.add(failure)
        return failure.case

    def _link(self, bucket: Bucket) -> None:
        """Compare a case with the oracle, every output and gradient asked for.

        A case that breaks another law, or asks for little, may show a known bug this way.
        """
        failure = bucket.first
        case = _asks_for_all(failure.case)
        laws = scope.laws(self.night.whose, case.op, case.mode)
        if failure.fingerprint.place or failure.fatal or _ORACLE not in laws:
            return
        try:
            scope.check(self.night.whose, case)
        except ValueError:
            case = failure.case
        if failure.law == _ORACLE and case == failure.case:
            return
        answer = self._ask(_ORACLE, case)
        differs = answer.failure
        if differs is None or differs.fatal:
            return
        shown = differs.fingerprint, *differs.also
        with self.night.lock:
            known = self.log.bucket(*shown, lines=answer.lines, case=bucket.first.case)
            bucket.linked.update(shown)
            if known is not None and known is not bucket:
                self._merge(known, bucket)

    def _merge(self, bucket: Bucket, other: Bucket) -> None:
        """Merge another bucket, of this round, into one of the same bug."""
        bucket.absorb(other)
        self.log.buckets.remove(other)
        self.found.remove(other)

    def _ask(self, law: str, case: Case) -> Answer:
        self.drawing = None
        try:
            return self.worker.ask(law, case)
        finally:
            self.drawing = Clock.started(os.getpid())

    def _sure(self, case: Case) -> Answer:
        """Judge a case; if the machine may be at fault, repeat until it fails in the same way
        twice. If somebody ends its process each time, that tells nothing of the case.

        Repeats use fresh processes with time to compile. A known bug needs no repeat. A case that
        hangs runs on the second engine at the same time, which would take as long again.
        """
        doubts: dict[str, Failure | None] = {}
        answer = self._ask(self.job.law, case)
        while answer.doubtful and answer.doubtful not in doubts and not self._knows(answer.failure):
            doubts[answer.doubtful] = answer.failure
            if answer.doubtful == HANGS:
                self._begin_elsewhere(self.job.law, case)
            answer = self._ask(self.job.law, case)
        doubts.pop(answer.doubtful, None)
        hung = doubts.get(HANGS)
        if hung is not None and answer.failure is not None:
            # A case that hangs under one limit and raises under a longer one, as a loop does at the
            # simulator's turn limit, is one bug with both fingerprints.
            del doubts[HANGS]
            failure = replace(answer.failure, also=(*answer.failure.also, hung.fingerprint))
            answer = replace(answer, failure=failure)
        if answer.sent:
            # Twice, and no failure of the case all the same.
            doubts[answer.doubtful] = None
            answer = Answer()
        with self.night.lock:
            self.log.unrepeated.update(doubts.keys())
        return answer

    def _knows(self, failure: Failure | None) -> bool:
        with self.night.lock:
            return failure is not None and self.log.bucket(failure.fingerprint) is not None

    def _again(self, bucket: Bucket) -> tuple[str, ...]:
        """The engines on which a bug repeats."""
        law, case = bucket.first.law, bucket.first.case
        second = self._begin_elsewhere(law, case)
        if bucket.first.fatal:
            first = "  again     in a fresh process as well"
        else:
            self.worker.restart()
            answers = [self.worker.ask(law, case) for _ in range(_AGAIN)]
            shown = [answer for answer in answers if _shows(answer, bucket)]
            times = len(shown)
            with self.night.lock:
                # A process that met the bug before notes no functions. The first call of a process
                # imports, as those of other bugs do.
                for answer in shown[1:]:
                    bucket.ran(answer.lines, answer.functions)
                    self.log.noted(case.op, answer)
            first = f"  again     {times} of {_AGAIN} times in a fresh process"
            if times < _AGAIN:
                with self.night.lock:
                    bucket.steady, bucket.needs = False, ()
        try:
            answer = second.asked.result()
        except (Exception, Lost) as error:
            also = f"cannot tell: {error}"
        else:
            if _shows(answer, bucket):
                also = "too"
            elif answer.doubtful == HANGS:
                also = "takes too long to tell"
            else:
                also = "does not show it"
        return first, f"  engines   the {second.beside}; the {second.engine} {also}"

    def _begin_elsewhere(self, law: str, case: Case) -> "_Elsewhere":
        """Start judging a case on the second engine, unless started already."""
        key = f"{law} {case.to_json()}"
        if key not in self.elsewhere:
            self.elsewhere[key] = _Elsewhere(self.night, law, case)
        return self.elsewhere[key]


class _Elsewhere:
    """A case on the second engine, in a process and thread of its own.

    Args:
        asked: the future answer.
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
        self.worker.stop()
        self.thread.shutdown()
        self.worker.close()
        self.night.workers.remove(self.worker)


def _asks_for_all(case: Case) -> Case:
    options = {**case.options, **OPS[case.op].asks_for_all}
    return replace(case, options=options, frozen=(), silent=())


def _shows(answer: Answer, bucket: Bucket) -> bool:
    """Whether the first case of a bucket shows its bug again."""
    again = answer.failure
    if again is None:
        return False
    # An engine that interprets lines hangs at another line than one that compiles.
    alike = again.hangs and bucket.first.hangs
    return alike or any(map(bucket.has, (again.fingerprint, *again.also)))


class Found(AssertionError):
    """A failing case, as Hypothesis sees it.

    Hypothesis takes failures of one type raised at one line for one bug. All are raised at one line
    here, so each fingerprint gets its own type.
    """


@cache
def type_of(fingerprint: Fingerprint, needs: tuple[str, ...] = ()) -> type[Found]:
    return type("Found", (Found,), {"__doc__": str(fingerprint)})


def lap_seed(seed: int, lap: int, job: Job) -> int:
    """A seed that no other job or lap of any run has, even with neighbouring run seeds."""
    return random.Random(f"{seed} {lap} {job.name}").randrange(2**63)


def _turns(jobs: Sequence[Job], seed: int) -> Iterator[tuple[int, Job]]:
    """Every job once per lap, each time in a new order, so that a short run is a fair sample.

    Every other turn compares with the oracle until all such jobs had theirs, as that finds most
    bugs, and few jobs have a turn in some minutes.
    """
    shuffler = random.Random(seed)
    for lap in counting():
        order = shuffler.sample(jobs, len(jobs))
        compared = [job for job in order if job.law == _ORACLE]
        others = [job for job in order if job.law != _ORACLE]
        pairs = chain.from_iterable(zip_longest(compared, others))
        yield from ((lap, job) for job in pairs if job is not None)
