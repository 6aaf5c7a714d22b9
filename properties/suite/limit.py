"""The time limit of a case in pytest, so that a kernel that hangs fails its test and others run."""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

import pytest

from properties.cases.case import Case
from properties.clock import Clock

# Seconds that a case may compute or sleep, twice what the fuzzer grants; after which compiled code
# that lets no signal through ends the run; and between looks.
_SECONDS, _GRACE, _LOOK = 120.0, 30.0, 1.0
_SIGNAL = signal.SIGUSR1
_exit = os._exit


class Hangs(BaseException):
    """No `Exception`, after which Hypothesis would draw cases that take as long."""


@contextmanager
def limited(config: pytest.Config) -> Iterator[Callable[[Case | None], None]]:
    """Raise `Hangs` in a case that takes too long.

    Yields:
        A function to call with each case as it begins or goes on, and with None where it pauses.
    """
    thread, done = threading.get_ident(), threading.Event()
    began: list[tuple[Clock, Case]] = []

    def begin(case: Case | None) -> None:
        began[:] = [] if case is None else [(Clock.started(os.getpid()), case)]

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"it takes over {_SECONDS:.0f} s")

    def watch() -> None:
        while not done.wait(_LOOK):
            for clock, case in [*began]:
                if monotonic() - clock.at < _SECONDS or clock.seconds() < _SECONDS:
                    continue
                if began != [(clock, case)]:
                    continue
                signal.pthread_kill(thread, _SIGNAL)
                if not done.wait(_GRACE) and began == [(clock, case)]:
                    _end(config, case)

    before = signal.signal(_SIGNAL, ring)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield begin
    finally:
        done.set()
        watching.join()
        signal.signal(_SIGNAL, before)


def _end(config: pytest.Config, case: Case) -> None:
    """End the process, as a worker of xdist or with all tests."""
    capturing = config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:
        capturing.suspend_global_capture()
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    told = f"it takes over {_SECONDS:.0f} s, and no exception ends it"
    os.write(2, f"\n{test}: {told}: {case.line()}\n".encode())
    faulthandler.dump_traceback(2)
    _exit(1)
