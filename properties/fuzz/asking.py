"""Asking about a case, and asking again: its failure may be the machine's, or the engine's."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from properties.cases.case import Case
from properties.clock import Clock
from properties.device import resolve
from properties.fuzz.answer import HANGS, Answer, Broken, Failure, Judge, Lost
from properties.fuzz.bucket import Bucket
from properties.fuzz.night import Night
from properties.fuzz.worker import Worker, is_sent

_AGAIN = 3
# The second engine for each device.
_OTHER_ENGINE = {"simulator": "interpreter", "interpreter": "simulator", "cuda": "simulator"}


class Asker:
    """Asks a worker about cases, and a second engine about those that fail.

    Attributes:
        idle: since when no process works for it, as while a case is drawn; None while one does.
        single: failures that did not repeat and are bugs nevertheless.
    """

    def __init__(self, night: Night, worker: Judge) -> None:
        self.night, self.worker, self.log = night, worker, night.log
        self.idle: Clock | None = None
        self.second_runs: dict[str, _SecondRun] = {}
        self.single: list[Failure] = []

    def ask(self, law: str, case: Case) -> Answer:
        self.idle = None
        try:
            return self.worker.ask(law, case)
        except Broken as error:
            raise Lost(f"{law}, {case.line()}:\n{error}") from error
        finally:
            self.idle = Clock.started(os.getpid())

    def confirmed(self, law: str, case: Case) -> Answer:
        """Ask about a case; if the machine may be at fault, repeat until it fails in the same way
        twice.

        Repeats use fresh processes with time to compile. A known bug needs no repeat. A case that
        hangs also starts on the second engine at once: after the repeat it would take as long
        again. One case of a kernel that hangs or crashes and passes when repeated may be the
        machine's fault; with the second one the kernel is flaky, or earlier cases change its
        process.
        """
        doubts: dict[str, Failure | None] = {}
        answer = self.ask(law, case)
        while answer.doubtful and answer.doubtful not in doubts and not self._knows(answer.failure):
            doubts[answer.doubtful] = None if answer.by_machine else answer.failure
            if answer.doubtful == HANGS:
                self._begin_second(law, case)
            answer = self.ask(law, case)
        doubts.pop(answer.doubtful, None)
        hung = doubts.get(HANGS)
        if hung is not None and answer.failure is not None:
            # A case that hangs under one limit and raises under a longer one, as a loop does at the
            # simulator's turn limit, is one bug with both fingerprints.
            del doubts[HANGS]
            failure = replace(answer.failure, also=(*answer.failure.also, hung.fingerprint))
            answer = replace(answer, failure=failure)
        if answer.by_machine:
            # Even twice it is no failure of the case.
            doubts[answer.doubtful] = None
            answer = Answer()
        with self.night.lock:
            if doubts and answer.failure is None:
                answer = self._flaky(doubts) or replace(answer, judged=False)
            self.log.unrepeated.update(doubts.keys())
        return answer

    def _flaky(self, doubts: dict[str, Failure | None]) -> Answer | None:
        """Take a failure out of doubts if such a case of its kernel was met before."""
        for how, failure in [*doubts.items()]:
            if failure is None or not failure.fatal or is_sent(how):
                continue
            kernel = (failure.case.op, failure.case.mode, how)
            self.night.met_once[kernel] += 1
            if self.night.met_once[kernel] > 1:
                del doubts[how]
                self.single.append(failure)
                return Answer(failure=failure)
        return None

    def _knows(self, failure: Failure | None) -> bool:
        with self.night.lock:
            return failure is not None and self.log.bucket(failure.fingerprint) is not None

    def repeats(self, bucket: Bucket) -> tuple[str, ...]:
        """Judge the first case of a bug again, on both engines.

        Returns:
            Lines for the report: how often the bug repeats, and on which engines.
        """
        law, case = bucket.first.law, bucket.first.case
        second = self._begin_second(law, case)
        if bucket.first in self.single:
            first = "  again     not in a fresh process, so it is flaky, or an earlier case"
            first += " changed its process"
            with self.night.lock:
                bucket.steady, bucket.needs = False, ()
        elif bucket.first.fatal:
            first = "  again     in a fresh process as well"
        else:
            self.worker.restart()
            answers = [self.worker.ask(law, case) for _ in range(_AGAIN)]
            shown = [answer for answer in answers if shows(answer, bucket)]
            times = len(shown)
            with self.night.lock:
                # A process that met the bug before notes no functions. The first call of a process
                # imports, as those of other bugs do.
                for answer in shown[1:]:
                    bucket.ran(answer.lines, answer.functions)
                    self.log.noted(case.op, answer)
            first = f"  again     {times} of {_AGAIN} times in a fresh process"
            if times == 0:
                first += ", so it is flaky, or an earlier case changed its process"
            if times < _AGAIN:
                with self.night.lock:
                    bucket.steady, bucket.needs = False, ()
        try:
            answer = second.asked.result()
        except (Exception, Lost) as error:
            also = f"cannot tell: {error}"
        else:
            if shows(answer, bucket):
                also = "too"
            elif answer.doubtful == HANGS:
                also = "takes too long to tell"
            elif answer.failure is not None:
                # One that does not check addresses goes on to wrong values.
                also = f"fails otherwise: {answer.failure.report.splitlines()[0]}"
            else:
                also = "does not show it"
        return first, f"  engines   the {second.beside}; the {second.engine} {also}"

    def close(self) -> None:
        self.idle = None
        for second in self.second_runs.values():
            second.close()

    def _begin_second(self, law: str, case: Case) -> "_SecondRun":
        """Start judging a case on the second engine, unless started already."""
        key = f"{law} {case.to_json()}"
        if key not in self.second_runs:
            self.second_runs[key] = _SecondRun(self.night, law, case)
        return self.second_runs[key]


class _SecondRun:
    """A case on the second engine, in a process and thread of its own.

    Attributes:
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
        self.asked: Future[Answer] = Future()
        try:
            self.asked = self.thread.submit(self.worker.ask, law, case)
        except RuntimeError as error:
            # The machine has no thread for it.
            self.asked.set_exception(error)

    def close(self) -> None:
        self.worker.stop()
        self.thread.shutdown()
        self.worker.close()
        self.night.workers.remove(self.worker)


def shows(answer: Answer, bucket: Bucket) -> bool:
    """Whether the first case of a bucket shows its bug again."""
    again = answer.failure
    if again is None:
        return False
    # An engine that interprets lines hangs at another line than one that compiles.
    alike = again.hangs and bucket.first.hangs
    return alike or any(map(bucket.has, again.fingerprints))
