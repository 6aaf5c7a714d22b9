"""A worker: a process that judges cases one by one, replaced when it hangs or ends."""

import ctypes
import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice, takewhile
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from traceback import FrameSummary
from types import CodeType, FrameType
from typing import IO, Any, Protocol
from unittest.mock import patch

import pebble
import torch
from pebble import ProcessExpired, ProcessFuture, ProcessPool

import properties
import reference
from properties import profiles, scope
from properties.cases.case import Case
from properties.cases.sequences import dims_of
from properties.counted import counted
from properties.device import gpus
from properties.fuzz.clock import Clock
from properties.jobs import judge, raised
from properties.laws import Subject, Violation
from properties.laws.signature import Signature, family, is_own, short
from properties.simulator import Stuck
from properties.simulator.compilation import Program
from properties.simulator.launcher import LAUNCHED
from properties.targets.ledger import symptom
from properties.verdict import Comparison
from properties.verdict.picture import Picture, picture
from properties.verdict.report import end_report, message_of

# Imported once, by the process that workers are forked from. Kernels are not, since the interpreter
# must be chosen before. Custom ops import torch._dynamo on their first call.
_SHARED = ("torch._dynamo", "triton", "properties.fuzz.worker")
# How a process ends that is killed at its time limit.
HANGS = "hangs"
# Factor on the time limit for the first case of a kind in a process, which compiles kernels.
FIRST = 1.5
# Seconds past its limit in which a hanging case may write its traceback, when asked by this signal.
_TRACING = 0.5
_WHERE = signal.SIGUSR1
# How many processes in a row may end or hang while they start, and seconds that one may take to
# begin a task, or to load the target.
_STARTS, _STARTING = 3, 300.0
# Seconds in which a process that was killed is gone.
_ENDING = 10.0
# Signals that no instruction raises: somebody else sends them, or Linux when memory is short.
_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
# Seconds between looks at the process, and in which pebble notices that it ended; it ignores one
# that ends with code 0.
_LOOK, _NOTICE = 1.0, 2.0
# A worker that grows by this much, or by its part of half the machine's memory, is replaced. Each
# needs some of it.
GROWTH, _LEAST = 2 << 30, 128 << 20
# Open files of this process for each worker and its second engine, and for all else.
_FILES, _OTHER_FILES = 16, 64
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Origin:
    """What a worker loads: the target, its device, its ledger."""

    target: str
    device: str
    ledger: str

    def subject(self) -> Subject:
        """Load the target in this process.

        Raises:
            ValueError: the target or ledger cannot be loaded, or the device is missing.
        """
        from properties.device import activate
        from properties.targets import load
        from properties.targets.ledger import read

        where = activate(self.device)
        profiles.register()
        target = load(self.target, where)
        return Subject(target, where, read(self.ledger, self.target, where.type))


@dataclass(frozen=True)
class Failure:
    """A case that breaks a law, raises an error, hangs or ends its process.

    Args:
        case: as the law adapted it.
        symptom: as a ledger entry would state it; empty if no entry can excuse it.
        also: signatures of other results that differ.
        fatal: the case hangs or ends its process.
        picture: of the result that differs.
    """

    signature: Signature
    law: str
    case: Case
    report: str
    symptom: str = ""
    also: tuple[Signature, ...] = ()
    fatal: bool = False
    picture: Picture | None = None

    @property
    def hangs(self) -> bool:
        """Whether it timed out, or reached the simulator's turn limit."""
        return self.signature.law == HANGS or self.signature.error == Stuck.__name__


@dataclass(frozen=True)
class Answer:
    """The result of one case.

    Args:
        worst: error as a fraction of its budget.
        excused: known failures of the target that the case showed.
        doubtful: how it failed if the machine may be at fault: out of memory, killed by someone
            else, or hanging.
        sent: its process was ended from outside, however often.
        spent: the process must be replaced.
        lines: source lines of the kernels that the case launched; none but on the simulator.
        functions: first lines of the target's Python functions that it ran; noted once for each
            mode and each bug of a process.
    """

    worst: float = 0.0
    failure: Failure | None = None
    excused: tuple[str, ...] = ()
    doubtful: str = ""
    sent: bool = False
    spent: bool = False
    lines: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


class Stopped(BaseException):
    """The run is over; nobody waits for this answer. Hypothesis does not catch it."""


class Lost(BaseException):
    """A worker can judge nothing more. Hypothesis does not catch it."""


class Judge(Protocol):
    """Judges cases one by one: a worker here or on another machine."""

    stopped: bool

    def ask(self, law: str, case: Case) -> Answer: ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Worker:
    """A process that judges cases.

    Args:
        origin: what it loads.
        limit: seconds that a case may compute or sleep; it may wait for a core as long as it must.
        growth: bytes by which it may grow before it is replaced.
        gpu: the GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None for all.
    """

    def __init__(
        self, origin: Origin, limit: float, growth: int = GROWTH, gpu: str | None = None
    ) -> None:
        self.origin, self.limit, self.growth, self.gpu = origin, limit, growth, gpu
        self.stopped = False
        # In memory, since a disk may be full.
        self.memory = os.memfd_create("traces")
        self.traces = Path(f"/proc/{os.getpid()}/fd/{self.memory}")
        self.running: ProcessFuture[Any] | None = None
        self.start()

    def start(self) -> None:
        self.compiled: set[tuple[str, str, str]] = set()
        self.loaded = False
        # What memory the process had and the machine, in words.
        self.memories = ""
        self.pool = ProcessPool(
            1,
            initializer=_start,
            initargs=(self.traces, _environment(self.gpu)),
            context=multiprocessing.get_context("forkserver"),
        )

    def restart(self) -> None:
        self._end()
        self.start()

    def ask(self, law: str, case: Case) -> Answer:
        """Judge one case.

        Raises:
            Stopped: the run ended before the answer.
            Lost: processes end or hang before they begin a case, or cannot load the target.
        """
        why: Exception | None = None
        for _ in range(_STARTS):
            if self.stopped:
                raise Stopped
            try:
                if not self.loaded:
                    self._load()
                return self._judged(law, case)
            except CancelledError:
                raise Stopped from None
            except (BrokenProcessPool, _Unloaded) as error:
                # It was killed while idle, or did not get as far as the case.
                why = error
                self.restart()
        self.stopped = True
        raise Lost(f"a process that judges cases does not start: {why}")

    def _load(self) -> None:
        """Load the target in a new process.

        Raises:
            BrokenProcessPool: the process ends or hangs meanwhile.
            Lost: the target raises an error here, though not where it was loaded first.
        """
        try:
            self._run(_load, (self.origin, self.growth), _STARTING)
        except TimeoutError as error:
            where = "".join(f", at {line}" for line in _places(self._trace())[:1])
            raise BrokenProcessPool(f"it hangs while it starts{where}") from error
        except ProcessExpired as error:
            raise BrokenProcessPool(f"it {_how(error.exitcode)} while it starts") from error
        except ValueError as error:
            self.stopped = True
            raise Lost(f"a process that judges cases does not start: {error}") from error
        self.loaded = True

    def _judged(self, law: str, case: Case) -> Answer:
        seconds = self.limit * (1 if self._has_compiled(case) else FIRST)
        killed = _killed_for_memory()
        try:
            answer: Answer = self._run(_judge, (law, case), seconds)
        except TimeoutError:
            answer = self._ended(law, case, HANGS, f" for {seconds:g} s")
        except ProcessExpired as error:
            answer = self._ended(law, case, _how(error.exitcode))
            if -error.exitcode in _SENT:
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
            with _held_up_for(_STARTING):
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
                return self.running.result(min(left, _LOOK))
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
            os.kill(clock.process, _WHERE)
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
        with _held_up_for(_ENDING):
            self.pool.stop()
            self.pool.join()
        if last is not None:
            # What the target has started.
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
            return replace(self._ended(law, case, _how(code)), sent=True)
        while_ = f", while Linux kills {counted(killed, 'process')} for want of memory"
        return self._ended(law, case, _how(code), while_ + self.memories)

    def _trace(self) -> str:
        """What the process wrote; no file is opened, as there may be too many."""
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
        # An endless loop may be interrupted at any of its lines, so name only the function.
        place = f"{short(own[0].filename)} in {own[0].name}"
    where = torch.device("cuda" if origin.device == "cuda" else "cpu")
    report = end_report(law, case, how + more, lines, where, origin.target)
    failure = Failure(Signature(family(case.op), how, place=place), law, case, report, fatal=True)
    return Answer(failure=failure, doubtful=how, spent=True)


def crew(origin: Origin, limit: float, count: int | None) -> list[Worker]:
    """Workers of this machine, which share its GPUs and memory.

    Args:
        count: None for one per GPU; without GPUs, one per core.

    Raises:
        ValueError: there are more than its memory or the limit of open files allows.
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
        sizes = _resident(process), int(free) << 10
    except (OSError, ValueError):
        return ""
    own, left = (f"{size / (1 << 30):.1f} GiB" for size in sizes)
    return f"; it had {own} a moment before, and {left} were free"


def _killed_for_memory() -> int:
    """How many processes Linux has killed since its start because memory was short."""
    found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _how(code: int) -> str:
    return f"ends with {signal.Signals(-code).name}" if code < 0 else f"ends with code {code}"


def _places(trace: str) -> list[str]:
    frames = _frames(trace)
    return _lines_of([one for one in frames if is_own(one.filename)] or frames)


def _lines_of(frames: Sequence[FrameSummary]) -> list[str]:
    return [f"{short(frame.filename)}:{frame.lineno}" for frame in frames]


def _frames(trace: str) -> list[FrameSummary]:
    """The frames that faulthandler wrote, innermost first, above a worker's own."""
    found = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', trace, re.MULTILINE)
    below = takewhile(lambda one: one[0] != __file__, found)
    return [FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in below]


def _environment(gpu: str | None = None) -> dict[str, str]:
    """This process's variables without the choice of an engine, which each worker makes."""
    chosen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | chosen


_PREPARING = Lock()


def prepare() -> None:
    """Start the process that workers are forked from, if there is none; like them it ignores
    Ctrl-C.
    """
    with _PREPARING:
        if _server() is None:
            _start_server()


def _start_server() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(list(_SHARED))
    # Kill a process that does not end when asked.
    pebble.CONSTS.term_timeout = 0.2
    # Python 3.11 does not pass it the module path.
    where = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # First, since it unblocks interrupts.
    resource_tracker.ensure_running()
    with without_interrupts(), patch.dict(os.environ, _environment() | where, clear=True):
        forkserver.ensure_running()


def _server() -> int | None:
    """The process that workers are forked from; None if it has ended."""
    process: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        runs = process is not None and os.waitid(os.P_PID, process, how) is None
    except ChildProcessError:
        runs = False
    return process if runs else None


def end_server() -> None:
    """Kill the process that workers are forked from, and the workers with it.

    Whoever waits for one of them does so no longer; the next to start begins with a new one.
    """
    process = _server()
    if process is not None:
        os.kill(process, signal.SIGKILL)


@contextmanager
def _held_up_for(seconds: float) -> Iterator[None]:
    """End the process that workers are forked from if it holds up what is done here for longer."""
    done = Event()

    def watch() -> None:
        clock = Clock.started(_server() or 0)
        while not done.wait(_LOOK):
            if clock.seconds() > seconds:
                end_server()
                break

    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes and threads started inside this context never see a Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the process of a worker.

_SUBJECT: Subject | None = None
# What runs in every case, whatever the target.
_JUDGES = tuple(str(Path(one.__file__ or "").parent) for one in (properties, reference))
# Modes and bugs whose functions were noted.
_NOTED: set[tuple[Hashable, ...]] = set()
# Seconds of a case that may run once more, well within its limit.
_QUICK = 5.0
_TRACES: IO[str]
# Bytes beyond which this process must be replaced.
_MOST: int


class _Unloaded(Exception):
    """A process that was replaced while idle has no target."""


def _start(traces: Path, environment: dict[str, str]) -> None:
    """Prepare the process, which ends with its parent."""
    os.environ.clear()
    os.environ.update(environment)
    global _TRACES
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # With all that it starts.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with _OOM.open("w") as score:
        score.write("1000")
    # The parent empties it before each task. It says who began the last one.
    _TRACES = traces.open("a")
    faulthandler.enable(_TRACES)
    faulthandler.register(_WHERE, _TRACES, all_threads=False)


def _begin() -> None:
    _TRACES.write(Clock.started(os.getpid()).line)
    _TRACES.flush()


def _load(origin: Origin, growth: int) -> None:
    """Load the kernels once per process."""
    global _SUBJECT, _MOST
    _begin()
    _SUBJECT = origin.subject()
    _MOST = _resident() + growth


# Make the out-of-memory killer choose workers first.
_OOM = Path("/proc/self/oom_score_adj")


def _judge(law: str, case: Case) -> Answer:
    if _SUBJECT is None:
        raise _Unloaded
    _begin()
    excused = _SUBJECT.ledger.excused
    excused.clear()
    LAUNCHED.clear()
    functions: set[str] = set()
    started = monotonic()
    with _noting(functions, case.op, case.mode, case.packed):
        answer = _answer(law, case, _SUBJECT)
    short_of_limit = monotonic() - started < _QUICK
    answer = replace(
        answer,
        excused=tuple(Counter(excused).elements()),
        lines=frozenset().union(*map(_lines, LAUNCHED)),
    )
    if answer.failure is not None and not answer.doubtful and not functions and short_of_limit:
        with _noting(functions, case.op, case.mode, answer.failure.signature) as new:
            if new:
                _answer(law, case, _SUBJECT)
    grown = _resident() > _MOST
    return replace(answer, spent=answer.spent or grown, functions=frozenset(functions))


@contextmanager
def _noting(functions: set[str], *key: Hashable) -> Iterator[bool]:
    """Note the target's functions that run inside, once for each key, as it takes time.

    Yields:
        Whether the key is new.
    """
    if key in _NOTED:
        yield False
        return
    _NOTED.add(key)
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield True
    finally:
        sys.setprofile(None)
        for code in codes:
            if is_own(code.co_filename) and not code.co_filename.startswith(_JUDGES):
                functions.add(f"{short(code.co_filename)}:{code.co_firstlineno}")


@cache
def _lines(program: Program) -> frozenset[str]:
    return frozenset(f"{short(file)}:{line}" for file, line in program.lines if is_own(file))


def _answer(law: str, case: Case, subject: Subject) -> Answer:
    try:
        return Answer(worst=judge(law, case, subject) or 0.0)
    except Violation as violation:
        found = violation
    except Exception:
        # An error of the suite.
        raise
    except BaseException as error:
        # Ctrl-C does not reach a worker: the target raised it.
        found = raised(law, case, subject, error)
    fault = found.fault
    doubtful = "runs out of memory" if _of_memory(fault) else ""
    failure = Failure(
        signature=found.signature,
        law=law,
        case=found.case,
        report=str(found),
        symptom=repr(symptom(fault)),
        also=tuple(replace(found.signature, output=name) for name in found.also),
        picture=_picture(found, subject),
    )
    lost = isinstance(fault, BaseException) and _device_is_lost()
    return Answer(failure=failure, doubtful=doubtful, spent=lost or bool(doubtful))


def _picture(found: Violation, subject: Subject) -> Picture | None:
    if not isinstance(found.fault, Comparison):
        return None
    op = scope.declared(subject.target, found.case.op, found.case.mode)
    return picture(found.fault, found.case, dims_of(op, found.fault.name))


def _of_memory(fault: object) -> bool:
    if isinstance(fault, RuntimeError) and "can't allocate memory" in message_of(fault):
        return True
    return isinstance(fault, MemoryError | torch.OutOfMemoryError)


def _device_is_lost() -> bool:
    """Whether the device no longer responds, as after an illegal address."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _resident(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
