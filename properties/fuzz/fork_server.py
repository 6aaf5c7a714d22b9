"""The process that workers are forked from, which imports once what they need."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from threading import Event, Lock, Thread
from unittest.mock import patch
from uuid import uuid4

import pebble

from properties.clock import Clock
from properties.fuzz.strays import MARK, end_marked

# Imported once, for all workers. Kernels are not, since the interpreter
# must be chosen before. Custom ops import torch._dynamo on their first call.
_SHARED = ("torch._dynamo", "triton", "properties.fuzz.worker", "properties.fuzz.last")
# Seconds between looks at a process.
LOOK = 1.0
_PREPARING = Lock()
# The mark of this run.
RUN = uuid4().hex


def prepare() -> None:
    """Start the process that workers are forked from, if there is none; like them it ignores
    Ctrl-C.
    """
    with _PREPARING:
        address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        if address is not None and not os.path.exists(address):
            # Somebody has deleted temporary files, and with them its socket.
            _end()
        if _server() is None:
            _start_server()


def _start_server() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(list(_SHARED))
    # Kill a process that does not end when asked.
    pebble.CONSTS.term_timeout = 0.2
    # Python 3.11 does not pass it the module path.
    where = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    os.makedirs(util.get_temp_dir(), mode=0o700, exist_ok=True)
    # By itself, since it unblocks Ctrl-C, which it ignores.
    with without_interrupts():
        resource_tracker.ensure_running()
    with without_interrupts(), patch.dict(os.environ, environment() | where, clear=True):
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

    Threads that wait for a worker stop waiting, and the next worker starts a new process.
    """
    # The lock is held until this one is gone, when Linux has closed its files.
    with _PREPARING:
        _end()


def _end() -> None:
    process = _server()
    if process is not None:
        os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def end_strays(run: str = RUN) -> None:
    """Kill what targets have started, in sessions of their own too, once no worker is needed.

    Args:
        run: its mark.
    """
    end_marked(run, [_server()])


@contextmanager
def held_up_for(seconds: float) -> Iterator[None]:
    """End the process that workers are forked from if this context waits longer for it."""
    done = Event()

    def watch() -> None:
        clock = Clock.started(_server() or 0)
        while not done.wait(LOOK):
            if clock.seconds() > seconds:
                end_server()
                break

    # Where the machine has no thread for it, nobody watches.
    with suppress(RuntimeError):
        Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes and threads started inside this context see neither Ctrl-C nor Ctrl-\\."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGQUIT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def environment(gpu: str | None = None) -> dict[str, str]:
    """This process's variables and its mark, without the choice of an engine, which each worker
    makes.
    """
    chosen = {MARK: RUN}
    if gpu is not None:
        chosen["CUDA_VISIBLE_DEVICES"] = gpu
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return variables | chosen
