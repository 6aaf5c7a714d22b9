"""Fork a process for each trial from a server that has imported everything.

Importing torch takes seconds, a fork milliseconds. A trial may loop, run out of memory or end its
process without harm to others.
"""

import ctypes
import gc
import os
import pickle
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from select import select
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import Any

from properties.clock import Clock

_MEMORY = 8 << 30
# Seconds in which a trial may sleep, besides its processor time: a compiler that it starts may run
# meanwhile.
_ASLEEP = 120.0
# Seconds between looks at a trial, and bytes of its answer that are read at once.
_LOOK, _PART = 1.0, 1 << 20
_PR_SET_PDEATHSIG = 1


class TrialDied(Exception):
    """The process of a trial ended without an answer.

    Args:
        status: from `os.waitpid`.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None

    @property
    def of_time(self) -> bool:
        """Whether it used up its time."""
        return self.signal == signal.SIGXCPU

    def __str__(self) -> str:
        how = f"signal {signal.Signals(self.signal).name}" if self.signal else "no answer"
        return f"the process of a trial ended with {how}"


class ForkPool:
    """Servers, started on demand, each of which forks a process for one task at a time.

    Args:
        preload: modules that the servers import.
        workers: the most servers.
        device: where tasks run kernels. Tasks are limited to 8 GiB, except on CUDA, which reserves
            address space for all memory.
        environment: additional variables of the servers.
    """

    def __init__(
        self,
        preload: Sequence[str],
        workers: int = 1,
        device: str = "auto",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # Here, as it imports torch, which servers need only if they preload it.
        from properties.device import resolve

        self._memory = None if resolve(device) == "cuda" else _MEMORY
        self._given = tuple(preload), dict(environment)
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._processes: list[BaseProcess] = []
        self._left, self._closed, self._lock = workers, False, Lock()
        self._threads = ThreadPoolExecutor(workers)

    def submit(
        self, function: Callable[..., Any], *arguments: Any, seconds: int = 600
    ) -> "Future[Any]":
        """Call `function` in a process of its own, for at most this much processor time, and two
        minutes of sleep.

        The future raises `TrialDied` if the process ends without an answer.
        """
        task = pickle.dumps((function, arguments, seconds, self._memory))
        return self._threads.submit(self._run, task, seconds + _ASLEEP)

    def _run(self, task: bytes, limit: float) -> Any:
        server = self._server()
        try:
            server.send((task, limit))
            good, answer = pickle.loads(server.recv_bytes())
        finally:
            self._idle.put(server)
        if good:
            return answer
        raise answer

    def _server(self) -> Connection:
        """An idle server, or a new one if there may be more. An unused thread starts no server.

        A server ends with the thread that started it, which lives until the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise EOFError("the pool is closed")
            # There are as many threads as servers, and only one thread at a time asks here.
            if not self._left or not self._idle.empty():
                return self._idle.get()
            self._left -= 1
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, *self._given), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            return ours

    def __enter__(self) -> "ForkPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(at_once=error is not None)

    def close(self, *, at_once: bool) -> None:
        """End the servers, and with them their trials: `at_once`, or when all are done."""
        self._threads.shutdown(wait=not at_once, cancel_futures=True)
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown()


def _serve(parent: Connection, preload: tuple[str, ...], environment: dict[str, str]) -> None:
    """Import, then answer tasks until the parent closes the connection."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment, OMP_NUM_THREADS="1")
    for name in preload:
        import_module(name)
    # Objects made so far stay shared with every trial, as no garbage collection writes to them.
    gc.collect()
    gc.freeze()
    while True:
        try:
            task, limit = parent.recv()
        except EOFError:
            return
        parent.send_bytes(_answer(task, limit))


def _answer(task: bytes, limit: float) -> bytes:
    """Run a task in a forked process; return the pickled answer or error.

    Args:
        limit: seconds that the process may compute or sleep.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # With all that it starts.
        os.setpgid(0, 0)
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(_work(task))
        os._exit(0)
    os.close(writing)
    answer, late = _read(reading, Clock.started(child), limit)
    # Before it has a group, it has started nothing.
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            end(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return pickle.dumps((False, TrialDied(signal.SIGXCPU)))
    return answer or pickle.dumps((False, TrialDied(status)))


def _read(reading: int, clock: Clock, limit: float) -> tuple[bytes, bool]:
    """Read what a process writes until it ends, though what it has started may keep the pipe open;
    return that and whether its time was up before.
    """
    parts: list[bytes] = []
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            ended = clock.ended
            ready, _, _ = select([pipe], [], [], 0 if ended else _LOOK)
            if ready:
                parts.append(pipe.read(_PART))
                if not parts[-1]:
                    return b"".join(parts), False
            elif ended:
                return b"".join(parts), False
            elif clock.seconds() > limit:
                return b"", True


def _work(task: bytes) -> bytes:
    _die_with_parent()
    try:
        function, arguments, seconds, memory = pickle.loads(task)
        # The hard limit ends the process by another signal, which could come first if it were
        # close.
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
        if memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            used = pages * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        try:
            return pickle.dumps((False, error))
        except Exception:
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
