"""A turn of a job: a few cases are drawn and judged, and those that fail are made smaller."""

import ctypes
import os
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from threading import get_ident
from time import monotonic
from traceback import extract_stack, format_exc, format_list

from hypothesis import Phase, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from properties import scope
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.clock import Clock
from properties.fuzz.answer import Answer, Failure, Judge, Lost, Stopped
from properties.fuzz.asking import Asker, shows
from properties.fuzz.bucket import Bucket
from properties.fuzz.log import ORACLE, Tally
from properties.fuzz.needs import parts
from properties.fuzz.night import EXAMPLES_OF_A_TURN, Night
from properties.jobs import Job, drawing
from properties.laws.fingerprint import Fingerprint, is_own


class Enough(BaseException):
    """Ends shrinking, or a resting job. Hypothesis does not catch it."""


class Endless(BaseException):
    """Ends drawing that takes too long: a bound of an adapter may never return."""


class Turn:
    """A few cases of one job, and the shrinking of those that fail.

    Attributes:
        found: the buckets of this turn. Hypothesis does not see failures of other buckets.
        until: when shrinking ends.
        thread: the one that draws, in which `end_drawing` raises.
        endless: why it did; empty if it did not.
    """

    def __init__(self, night: Night, worker: Judge, job: Job, lap: int) -> None:
        self.night, self.worker, self.job, self.lap = night, worker, job, lap
        self.log, self.asker = night.log, Asker(night, worker)
        self.found: list[Bucket] = []
        self.until = float("inf")
        self.thread = get_ident()
        self.endless = ""

    @property
    def _shrinking(self) -> bool:
        """Whether cases are drawn to make one that fails smaller."""
        return self.until < float("inf")

    def play(self) -> None:
        """Try kept cases in the first lap, draw others, and tell the night of each bug found."""
        self.asker.idle = Clock.started(os.getpid())
        with self.night.lock:
            self.night.held.append(self.found)
        try:
            if self.lap == 0:
                with suppress(Enough):
                    self._try_kept()
            self._draw()
            for bucket in list(self.found):
                self._find_needs(bucket)
                self._link(bucket)
            self.asker.idle = None
            for bucket in list(self.found):
                bucket.repeats = self.asker.repeats(bucket)
                with self.night.lock:
                    if known := self.log.as_unsteady(bucket):
                        self._merge(known, bucket)
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
            self.asker.close()
            for bucket in self.found:
                for failure in bucket.smallest:
                    self.night.corpus.keep(self.job, failure.case, float("inf"))
                self.night.tell(bucket)
            with self.night.lock:
                self.night.held = [held for held in self.night.held if held is not self.found]
                self.log.merge(without=[bucket for held in self.night.held for bucket in held])

    def end_drawing(self, limit: float) -> None:
        """Raise in the thread if it draws for longer, which no exception of its own will end."""
        clock = self.asker.idle
        if clock is None or monotonic() - clock.at < limit or clock.seconds() < limit:
            return
        if clock is not self.asker.idle:
            return
        self.asker.idle = None
        frame = sys._current_frames().get(self.thread)
        frames = [f for f in extract_stack(frame) if is_own(f.filename)] if frame else []
        where = "".join(format_list(frames[-3:]))
        self.endless = f"drawing a case of {self.job.name} takes over {limit:.0f} s, in\n{where}"
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(self.thread), ctypes.py_object(Endless))

    def _broken(self, error: str) -> None:
        """Note an error that ended the turn."""
        with self.night.lock:
            self.log.errors[error] += 1
            self.log.tallies[self.job].broken = not self.worker.stopped

    def _try_kept(self) -> None:
        """Try the cases that earlier nights kept, if they are still valid.

        A target may have got bounds since.
        """
        for worst, case in self.night.corpus.entries(self.job):
            try:
                bounded = scope.declared(self.night.target, case.op, case.mode).settle(case)
                scope.check(self.night.target, bounded)
            except ValueError:
                self.night.corpus.drop(self.job, case)
                continue
            passes = self._judge(bounded)[0] is None
            if bounded != case or (passes and worst == float("inf")):
                self.night.corpus.drop(self.job, case)

    def _draw(self) -> None:
        nightly = settings.get_profile("nightly")
        phases = {Phase.generate} | ({Phase.shrink} if self.night.shrink else set())
        limited = settings(
            nightly,
            max_examples=EXAMPLES_OF_A_TURN,
            phases=[phase for phase in nightly.phases if phase in phases],
            database=self.night.corpus.database,
        )
        test = drawing(self.job, self.night.target, self._check)
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
                self.until = min(self.until, monotonic() + self.night.seconds_to_shrink())
                raise type_of(failure.fingerprint, bucket.needs)

    def _judge(self, case: Case) -> tuple[Failure, Bucket] | tuple[None, None]:
        """Judge a case and log it; return its failure and the bucket of that, if it fails.

        Raises:
            Enough: the time to shrink is over, or the job rests.
        """
        if monotonic() > self.until or self.night.rests(self.job):
            raise Enough
        started = monotonic()
        try:
            answer = self.asker.confirmed(self.job.law, case)
        except Stopped as end:
            if end.judging and self.night.overdue:
                with self.night.lock:
                    repro = self.night.origin.repro(self.job.law, case)
                    self.night.cut_off[self.job.name] = repro.line
            raise
        seconds = monotonic() - started
        failure = answer.failure
        tally = Tally(
            examples=int(not self._shrinking),
            seconds=seconds,
            worst=answer.worst,
            failed=int(failure is not None and not self._shrinking),
            lost=seconds if failure is not None and failure.fatal else 0.0,
            unjudged=int(not answer.judged and not self._shrinking),
        )
        needs = self._needs_beyond(failure, answer) if failure and not self._shrinking else ()
        with self.night.lock:
            self.log.judged(self.job, answer, tally, self.night.elapsed)
            if failure is None:
                self.night.corpus.keep(self.job, case, answer.worst)
                return None, None
            return failure, self._bucket(failure, answer, needs)

    def _bucket(self, failure: Failure, answer: Answer, needs: Sequence[str]) -> Bucket:
        """Put a failure into its bucket, and merge those of this turn that it shows to be one.

        Args:
            needs: parts of the case that no bucket has yet; if there are some, the bucket is new.
        """
        bucket = self.log.of_failure(failure, answer.lines)
        if bucket is None or needs:
            bucket = self.log.open(failure, self.night.elapsed, needs)
            self.found.append(bucket)
        bucket.add(failure)
        bucket.ran(answer.lines, answer.functions)
        # A bug that shows while another one shrinks counts once.
        bucket.seen[self.job.name] += not self._shrinking or not bucket.seen[self.job.name]
        for other in list(self.found):
            alike = other.needs == bucket.needs and other.shows(failure.fingerprints, answer.lines)
            if other is not bucket and alike:
                self._merge(bucket, other)
        return bucket

    def _needs_beyond(self, failure: Failure, answer: Answer) -> tuple[str, ...]:
        """Parts of a case that its failure needs and no case of its bucket had.

        A part that another failure could spare is tried again in a smaller case.
        """
        with self.night.lock:
            bucket = self.log.of_failure(failure, answer.lines)
            full = self.log.is_full(failure.fingerprint)
        if bucket is None or bucket in self.found or full:
            return ()
        named = failure.fingerprint.place or failure.fatal
        if named or not bucket.steady or not self.night.shrink:
            return ()
        had = {name for smallest in bucket.smallest for name in parts(smallest.case)}
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
        until = monotonic() + self.night.seconds_to_shrink(self.until - monotonic())
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

    def _differs_without(self, case: Case, name: str, shown: Sequence[Fingerprint]) -> bool:
        """Whether a case differs from the oracle as before without a part, if it has that."""
        if name not in parts(case):
            return True
        plainer = self._plainer(case, name)
        answer = self.asker.ask(ORACLE, plainer) if plainer else None
        again = answer.failure if answer else None
        return again is not None and not {*again.fingerprints}.isdisjoint(shown)

    def _plainer(self, case: Case, name: str) -> Case | None:
        """A case without one of its parts; None if the target has no such case."""
        try:
            op = scope.declared(self.night.target, case.op, case.mode)
            plainer = op.settle(parts(case)[name])
            scope.check(self.night.target, plainer)
        except ValueError:
            return None
        return plainer

    def _without(self, bucket: Bucket, case: Case, name: str) -> Case | None:
        """A case without one of its parts; None if it shows a bucket's bug no longer.

        If that cannot be told, it is the case itself.
        """
        plainer = self._plainer(case, name)
        if plainer is None:
            return case
        answer = self.asker.ask(bucket.first.law, plainer)
        failure = answer.failure
        if failure is None or not shows(answer, bucket):
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
        laws = scope.laws(self.night.target, case.op, case.mode)
        if failure.fingerprint.place or failure.fatal or ORACLE not in laws:
            return
        try:
            scope.check(self.night.target, case)
        except ValueError:
            case = failure.case
        if failure.law == ORACLE and case == failure.case:
            return
        answer = self.asker.ask(ORACLE, case)
        differs = answer.failure
        if differs is None or differs.fatal:
            return
        shown = differs.fingerprints
        # A law may hold of wrong results, so that it needs more of a case than the bug does.
        needs = tuple(n for n in bucket.needs if not self._differs_without(case, n, shown))
        with self.night.lock:
            bucket.needs = needs
            known = self.log.bucket(*shown, lines=answer.lines, case=bucket.first.case)
            bucket.linked.update(shown)
            if known is not None and known is not bucket:
                self._merge(known, bucket)

    def _merge(self, bucket: Bucket, other: Bucket) -> None:
        """Merge another bucket, of this turn, into one of the same bug."""
        bucket.absorb(other)
        self.log.buckets.remove(other)
        self.found.remove(other)


def _asks_for_all(case: Case) -> Case:
    options = {**case.options, **OPS[case.op].asks_for_all}
    return replace(case, options=options, frozen=(), silent=())


class Found(AssertionError):
    """A failing case, as Hypothesis sees it.

    Hypothesis takes failures of one type raised at one line for one bug. All are raised at one line
    here, so each fingerprint gets its own type.
    """


@cache
def type_of(fingerprint: Fingerprint, needs: tuple[str, ...]) -> type[Found]:
    return type("Found", (Found,), {"__doc__": str(fingerprint)})


def lap_seed(seed: int, lap: int, job: Job) -> int:
    """A seed that no other job or lap of any run has, even with neighbouring run seeds."""
    return random.Random(f"{seed} {lap} {job.name}").randrange(2**63)
