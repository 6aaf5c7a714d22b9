"""A worker: a process that judges cases one by one, replaced when it hangs or ends."""

import multiprocessing
import os
import re
import resource
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from itertools import count as counting
from itertools import cycle, islice, takewhile
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from traceback import FrameSummary
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from properties.cases.case import Case
from properties.clock import Clock
from properties.counted import counted
from properties.device import gpus
from properties.fuzz import judging, sent
from properties.fuzz.answer import HANGS, Answer, Broken, Failure, Lost, Origin, Stopped
from properties.fuzz.fork_server import (
    LOOK,
    environment,
    held_up_for,
    prepare,
    without_interrupts,
)
from properties.laws.fingerprint import Fingerprint, family, is_own, place_of_loop, short
from properties.verdict.report import end_report

# Factor on the time limit for the first case of a kind in a process, which compiles kernels.
FIRST = 1.5
# Seconds past its limit in which a hanging case may write its traceback.
_TRACING = 0.5
# How many processes in a row may end or hang while they start, and seconds that one may take to
# begin a task, or to load the target.
_STARTS, _STARTING = 3, 300.0
# Seconds before the second attempt, and twice as many before the third.
_PAUSE = 0.2
# Seconds in which a target that loaded before may load again, as somebody may be saving its module,
# or the machine may fork nothing for a while; and seconds between attempts.
_SAVING, _SAVED = 300.0, 1.0
# Seconds in which a process that was killed is gone.
_ENDING = 10.0
# Seconds in which pebble notices that the process ended; it ignores one that ends with code 0.
_NOTICE = 2.0
# A worker that grows by this much, or by its part of half the machine's memory, is replaced. Each
# needs some of it.
GROWTH, _LEAST = 2 << 30, 128 << 20
# Open files of this process for each worker and its second engine, and for all else.
_FILES, _OTHER_FILES = 16, 64

T = TypeVar("T")


class Worker:
    """A process that judges cases.

    Args:
        origin: what it loads.
        limit: seconds that a case may compute or sleep; it may wait for a core as long as it must.
        growth: bytes by which it may grow before it is replaced.
        gpu: the GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None for all.
        prints: what the target prints is shown.
    """

    def __init__(
        self,
        origin: Origin,
        limit: float,
        growth: int = GROWTH,
        gpu: str | None = None,
        *,
        prints: bool = False,
    ) -> None:
        self.origin, self.limit, self.growth, self.gpu = origin, limit, growth, gpu
        self.stopped, self.prints, self.loaded_before = False, prints, False
        # In memory, since a disk may be full.
        self.memory = os.memfd_create("traces")
        self.traces = Path(f"/proc/{os.getpid()}/fd/{self.memory}")
        self.running: ProcessFuture[Any] | None = None
        self.start()

    def start(self) -> None:
        self.compiled: set[tuple[str, str, str]] = set()
        self.loaded = False
        # The memory of the process, and what the machine had left, in words.
        self.memories = ""
        self.pool = ProcessPool(
            1,
            initializer=judging.start,
            initargs=(self.traces, environment(self.gpu), self.prints),
            context=multiprocessing.get_context("forkserver"),
        )

    def restart(self) -> None:
        """Begin anew with another process.

        Raises:
            BrokenProcessPool: the machine has no thread or process for it.
        """
        try:
            self._end()
            self.start()
        except (OSError, RuntimeError) as error:
            raise BrokenProcessPool(str(error)) from error

    def load(self) -> None:
        """Load the target, unless it is loaded.

        Raises:
            Stopped: the run ended before.
            Lost: processes end or hang before they have loaded the target, or cannot.
        """
        self._started(lambda: None)

    def ask(self, law: str, case: Case) -> Answer:
        """Judge one case.

        Raises:
            Stopped: the run ended before the answer.
            Lost: processes end or hang before they begin a case, or cannot load the target.
        """
        return self._started(lambda: self._judged(law, case))

    def _started(self, then: Callable[[], T]) -> T:
        """Do something in a process that has loaded the target."""
        why: Exception | None = None
        until = monotonic() + (_SAVING if self.loaded_before else 0.0)
        for before in counting():
            if before >= _STARTS and (self.stopped or monotonic() > until):
                break
            if self.stopped:
                raise Stopped
            # Where it would be forked from may be about to end.
            sleep(min(before * _PAUSE, _SAVED))
            try:
                if why is not None:
                    self.restart()
                if not self.loaded:
                    self._load()
                return then()
            except CancelledError:
                raise Stopped(judging=self.loaded) from None
            except (BrokenProcessPool, judging.Unloaded) as error:
                # The process was killed while idle, or ended before it began the case.
                why = error
        self.stopped = True
        raise Lost(f"a process that judges cases does not start: {why}")

    def _load(self) -> None:
        """Load the target in a new process.

        Raises:
            BrokenProcessPool: the process ends or hangs meanwhile.
            Lost: the target raises an error here, though not where it was loaded first.
            Stopped: the run ended meanwhile.
        """
        until = monotonic() + (_SAVING if self.loaded_before else 0.0)
        while why := self._why_not_loaded():
            if monotonic() > until:
                self.stopped = True
                raise Lost(why)
            # This process would keep the modules that it has imported already.
            self.restart()
            sleep(_SAVED)
            if self.stopped:
                raise Stopped
        self.loaded = self.loaded_before = True

    def _why_not_loaded(self) -> str:
        """Load the target in a new process; return the error that it raises, if there is one.

        Raises:
            BrokenProcessPool: the process ends or hangs meanwhile.
        """
        try:
            why: str = self._run(judging.load, (self.origin, self.growth), _STARTING)
            return why
        except Broken as error:
            return str(error)
        except TimeoutError as error:
            raise BrokenProcessPool(f"it hangs while it starts{self._where()}") from error
        except ProcessExpired as error:
            how = _how(error.exitcode)
            raise BrokenProcessPool(f"it {how} while it starts{self._where()}") from error

    def _judged(self, law: str, case: Case) -> Answer:
        seconds = self.limit * (1 if self._has_compiled(case) else FIRST)
        killed = _killed_for_memory()
        try:
            answer: Answer = self._run(judging.judge, (law, case), seconds)
        except TimeoutError:
            answer = self._ended(law, case, HANGS, f" for {seconds:g} s")
        except ProcessExpired as error:
            answer = self._ended(law, case, _how(error.exitcode))
            if sent.by_itself(self._trace(), -error.exitcode):
                answer = self._ended(law, case, f"{_how(error.exitcode)}, which it sends itself")
            elif -error.exitcode in sent.SENT:
                answer = self._sent(law, case, error.exitcode, _killed_for_memory() - killed)
        if answer.spent:
            self.restart()
        else:
            self.compiled.add((case.op, case.mode, case.dtype))
        return answer

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Any:
        """Call a function in the process.

        Raises:
            BrokenProcessPool: there is no process, or it does not begin.
            TimeoutError: there is no answer within the limit; the process wrote where it was.
            ProcessExpired: the process ended.
            CancelledError: the run is over.
        """
        os.ftruncate(self.memory, 0)
        try:
            prepare()
            # The first call starts the pool's threads, which replace processes that end.
            with held_up_for(_STARTING), without_interrupts():
                self.running = self.pool.schedule(function, arguments)
        except (OSError, RuntimeError) as error:
            # pebble raises a RuntimeError for a pool that is broken already.
            why = str(error.__cause__ or error)
            raise BrokenProcessPool(why or "it cannot be forked") from error
        if self.stopped:
            self.running.cancel()
        asked, left = monotonic(), limit
        while left > 0:
            with suppress(TimeoutError):
                return self.running.result(min(left, LOOK))
            clock = Clock.read(self._trace())
            if clock is None:
                if monotonic() - asked > _STARTING:
                    raise BrokenProcessPool("it begins nothing")
                continue
            if clock.ended:
                with suppress(TimeoutError):
                    return self.running.result(_NOTICE)
                raise ProcessExpired("it ended", code=0)
            self.memories = _memories(clock.process)
            left = limit - clock.seconds()
        assert clock
        with suppress(ProcessLookupError):
            os.kill(clock.process, judging.WHERE)
        try:
            return self.running.result(_TRACING)
        except ProcessExpired as error:
            # The target has taken over the signal, which then ends the process.
            raise TimeoutError from error

    def stop(self) -> None:
        """Release whoever waits for an answer; callable from any thread."""
        self.stopped = True
        if self.running is not None:
            self.running.cancel()

    def close(self) -> None:
        self._end()
        memory, self.memory = self.memory, -1
        if memory >= 0:
            os.close(memory)

    def _end(self) -> None:
        last = Clock.read(self._trace()) if self.memory >= 0 else None
        with held_up_for(_ENDING):
            self.pool.stop()
            self.pool.join()
        if last is not None:
            # Processes that the target has started.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(last.process, signal.SIGKILL)

    def _has_compiled(self, case: Case) -> bool:
        return (case.op, case.mode, case.dtype) in self.compiled

    def _ended(self, law: str, case: Case, how: str, more: str = "") -> Answer:
        return ended(self.origin, law, case, how, more, _frames(self._trace()))

    def _sent(self, law: str, case: Case, code: int, killed: int) -> Answer:
        """The answer for a case whose process was ended by a signal that no instruction raises.

        Args:
            killed: how many processes Linux has killed for memory since the case began. It is
                counted for the machine, so that this one need not be among them.
        """
        if code != -signal.SIGKILL or not killed:
            return replace(self._ended(law, case, _how(code)), by_machine=True)
        while_ = f", while Linux kills {counted(killed, 'process')} for want of memory"
        return self._ended(law, case, _how(code), while_ + self.memories)

    def _where(self) -> str:
        """The line at which the process wrote its traceback, if it did."""
        return "".join(f", at {line}" for line in _places(self._trace())[:1])

    def _trace(self) -> str:
        """Read what the process wrote. No file is opened, as too many may be open."""
        return os.pread(self.memory, 1 << 20, 0).decode(errors="replace")


def ended(
    origin: Origin,
    law: str,
    case: Case,
    how: str,
    more: str = "",
    frames: Sequence[FrameSummary] = (),
) -> Answer:
    """The answer for a case whose process hangs or ended.

    Args:
        how: "hangs", "ends with SIGSEGV"; the same for all cases of one bug.
        more: details of this case.
        frames: where it was, innermost first.
    """
    own = [frame for frame in frames if is_own(frame.filename)]
    lines = _lines_of(own or frames)
    place = lines[0] if own else ""
    if own and how == HANGS:
        place = place_of_loop(own[0])
    report = end_report(origin.repro(law, case), how + more, lines)
    failure = Failure(Fingerprint(family(case.op), how, place=place), law, case, report, fatal=True)
    return Answer(failure=failure, doubtful=how, spent=True)


def crew(origin: Origin, limit: float, count: int | None) -> list[Worker]:
    """Workers of this machine, which share its GPUs and memory.

    Args:
        count: None for one per GPU; without GPUs, one per core.

    Raises:
        ValueError: there are more than its memory or the limit of open files allows, or it starts
            no thread.
    """
    devices: list[str | None] = [*gpus(origin.device)]
    most = _memory() // (2 * _LEAST)
    count = count or len(devices) or min(os.cpu_count() or 1, most)
    if count > most:
        what = f"expected at most {most} in {_memory() / (1 << 30):.0f} GiB of memory"
        raise ValueError(f"--jobs: {count}, {what}")
    files = _OTHER_FILES + _FILES * count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < files:
        what = f"open files: {hard} at most (ulimit -n), expected {files}"
        raise ValueError(f"{what} for {counted(count, 'process')}")
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        Thread(target=int).start()
    except RuntimeError as error:
        raise ValueError(f"threads: {error} (ulimit -u), expected some for each process") from error
    seats = islice(cycle(devices or [None]), count)
    return [Worker(origin, limit, growth(count), gpu) for gpu in seats]


def growth(workers: int) -> int:
    """Bytes by which each of several workers of this machine may grow."""
    return min(GROWTH, _memory() // (2 * workers))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


def _memories(process: int) -> str:
    """The memory of a process and what is left of the machine's, at the end of a sentence."""
    try:
        (free,) = re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
        sizes = judging.resident(process), int(free) << 10
    except (OSError, ValueError):
        return ""
    own, left = (f"{size / (1 << 30):.1f} GiB" for size in sizes)
    return f"; it had {own} a moment before, and {left} were free"


def _killed_for_memory() -> int:
    """How many processes Linux has killed since its start because memory was short."""
    line = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(line[1]) if line else 0


def _how(code: int) -> str:
    return f"ends with {signal.Signals(-code).name}" if code < 0 else f"ends with code {code}"


def is_sent(how: str) -> bool:
    """Whether a process ended by a signal that no instruction raises, and another process may have
    sent.
    """
    return how in map(_how, (-number for number in sent.SENT))


def _places(trace: str) -> list[str]:
    frames = _frames(trace)
    return _lines_of([frame for frame in frames if is_own(frame.filename)] or frames)


def _lines_of(frames: Sequence[FrameSummary]) -> list[str]:
    return [f"{short(frame.filename)}:{frame.lineno}" for frame in frames]


def _frames(trace: str) -> list[FrameSummary]:
    """The frames that faulthandler wrote, innermost first, above a worker's own."""
    matches = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', trace, re.MULTILINE)
    if matches and matches[0][::2] == (judging.__file__, judging.NOTE):
        # It notes the functions that the target calls, such as one that a loop calls at each turn.
        del matches[0]
    below = takewhile(lambda match: match[0] != judging.__file__, matches)
    return [FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in below]
