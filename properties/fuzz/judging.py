"""In the process of a worker: load a target and judge cases."""

import ctypes
import errno
import faulthandler
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, wraps
from multiprocessing import forkserver
from pathlib import Path
from time import monotonic
from traceback import format_exc
from types import CodeType, FrameType
from typing import IO, Any, ParamSpec, TypeVar

import torch

import properties
import reference
from properties import jobs, scope
from properties.cases.case import Case
from properties.cases.sequences import dims_of
from properties.clock import Clock
from properties.fuzz import sent
from properties.fuzz.answer import Answer, Broken, Failure, Origin
from properties.fuzz.ending import tolerating_a_removed_folder
from properties.laws import Subject, Violation
from properties.laws.fingerprint import is_own, short
from properties.simulator.compilation import Program
from properties.simulator.launcher import LAUNCHED
from properties.targets.ledger import symptom
from properties.verdict import Comparison
from properties.verdict.exceptions import message_of, plain
from properties.verdict.picture import Picture, picture
from properties.verdict.report import versions

# The signal that asks a hanging case for its traceback.
WHERE = signal.SIGUSR1
# The function that notes each call of the target, in which a traceback may end.
NOTE = "note"
_PR_SET_PDEATHSIG = 1
# Make the out-of-memory killer choose workers first.
_OOM = Path("/proc/self/oom_score_adj")
# Folders whose functions run in every case, whatever the target.
_JUDGES = tuple(str(Path(one.__file__ or "").parent) for one in (properties, reference))
_DISK = "disk"
# The resource that ran out, by the error of a system call or the text of a RuntimeError.
_SCARCE = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.EAGAIN: "processes",
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
}
_TOLD = {"can't allocate memory": "memory", "can't start new thread": "threads"}
# Seconds of a case that may run once more, well within its limit.
_QUICK = 5.0

_SUBJECT: Subject | None = None
# Modes and bugs whose functions were noted.
_NOTED: set[tuple[Hashable, ...]] = set()
_TRACES: IO[str]
# Bytes beyond which this process must be replaced.
_MOST: int


P = ParamSpec("P")
T = TypeVar("T")


class Unloaded(Exception):
    """This process cannot judge: it was replaced while idle and has no target, or an earlier case
    has damaged it.
    """


def _answering(function: Callable[P, T]) -> Callable[P, T]:
    """Answer once, with errors as text: a target may fork and return in both processes, and an
    exception of its own may not survive the way back.
    """

    @wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        asked = os.getpid()
        try:
            with tolerating_a_removed_folder():
                return function(*args, **kwargs)
        except Unloaded:
            raise
        except BaseException as error:
            raise Broken(_told(error)) from None
        finally:
            if os.getpid() != asked:
                os._exit(0)

    return answer


def _told(error: BaseException) -> str:
    """The traceback, or the text if the exception, which may be the target's, prevents that."""
    try:
        return format_exc()
    except BaseException:
        return message_of(error)


def start(traces: Path, environment: dict[str, str], prints: bool) -> None:
    """Prepare the process, which ends with its parent.

    Args:
        prints: what the target prints is shown; otherwise it goes nowhere, as the night's output
            may be a terminal that shows a table, a pipe that nobody reads, or on a full disk.
    """
    os.environ.clear()
    os.environ.update(environment)
    global _TRACES
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # With all that it starts.
    os.setpgid(0, 0)
    # Processes that the target starts would keep it open, and with it the fork server alive.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with _OOM.open("w") as score:
        score.write("1000")
    # The parent empties it before each task. It says who began the last one.
    _TRACES = traces.open("a")
    faulthandler.enable(_TRACES)
    faulthandler.register(WHERE, _TRACES, all_threads=False)
    sent.note_to_itself(_TRACES)
    if not prints:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)


def _begin() -> None:
    _TRACES.write(Clock.started(os.getpid()).line)
    _TRACES.flush()


def _separately(about: tuple[Any, ...], compute: Callable[[], T]) -> T:
    """Give each answer of an oracle a time limit of its own, and the target the rest."""
    # A target may have left this process unable to write.
    with suppress(OSError):
        _begin()
    try:
        return compute()
    finally:
        with suppress(OSError):
            _begin()


@_answering
def load(origin: Origin, growth: int) -> str:
    """Load the kernels once per process; return why they cannot be loaded."""
    global _SUBJECT, _MOST
    _begin()
    try:
        _SUBJECT = replace(origin.subject(), recall=_separately)
    except ValueError as error:
        return message_of(error)
    except KeyboardInterrupt:
        # Ctrl-C does not reach a worker.
        return f"target: {origin.target!r} raises KeyboardInterrupt"
    # Cached for reports: later, too many files may be open to read them.
    versions()
    _MOST = resident() + growth
    return ""


@_answering
def judge(law: str, case: Case) -> Answer:
    if _SUBJECT is None:
        raise Unloaded
    try:
        _begin()
    except OSError as error:
        raise Unloaded(f"an earlier case has left it unable to write: {error}") from error
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
        with _noting(functions, case.op, case.mode, answer.failure.fingerprint) as new:
            if new:
                _answer(law, case, _SUBJECT)
    return replace(answer, spent=answer.spent or _grown(), functions=frozenset(functions))


def _grown() -> bool:
    """Whether the process takes too much memory, or cannot even look because it opened too many
    files.
    """
    try:
        return resident() > _MOST
    except OSError:
        return True


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

    # Named `NOTE`.
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
        return Answer(worst=jobs.judge(law, case, subject) or 0.0)
    except Violation as error:
        violation = error
    except BaseException as error:
        # Ctrl-C does not reach a worker: the target raised it.
        if isinstance(error, Exception) and not _lacking(plain(error)):
            # An error of the suite.
            raise
        violation = jobs.raised(law, case, subject, error)
    fault = violation.fault
    lacking = _lacking(fault)
    doubtful = f"runs out of {lacking}" if lacking else ""
    failure = Failure(
        fingerprint=violation.fingerprint,
        law=law,
        case=violation.case,
        report=str(violation),
        symptom=repr(symptom(fault)),
        also=tuple(replace(violation.fingerprint, output=name) for name in violation.also),
        picture=_picture(violation, subject),
        excess=violation.excess,
    )
    lost = isinstance(fault, BaseException) and _device_is_lost()
    return Answer(
        failure=failure,
        doubtful=doubtful,
        by_machine=lacking == _DISK,
        spent=lost or bool(doubtful),
    )


def _picture(violation: Violation, subject: Subject) -> Picture | None:
    if not isinstance(violation.fault, Comparison):
        return None
    op = scope.declared(subject.target, violation.case.op, violation.case.mode)
    return picture(violation.fault, violation.case, dims_of(op, violation.fault.name))


def _lacking(fault: object) -> str:
    """The resource that the process or the machine ran out of; empty for other errors."""
    if isinstance(fault, MemoryError | torch.OutOfMemoryError):
        return "memory"
    if isinstance(fault, OSError):
        return _SCARCE.get(fault.errno or 0, "")
    text = message_of(fault) if isinstance(fault, RuntimeError) else ""
    return next((what for words, what in _TOLD.items() if words in text), "")


def _device_is_lost() -> bool:
    """Whether the device no longer responds, as after an illegal address."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def resident(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
