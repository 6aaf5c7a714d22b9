"""Signals that no instruction raises, and whether a process sent one to itself."""

import faulthandler
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import IO

# Somebody sends them, or Linux where memory is short or a process has had its time of a core
# (`ulimit -t`), in whichever case that is.
SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
# It begins the line about one that the target sends to its own process.
_ITSELF = "sends itself"


def note_to_itself(traces: IO[str]) -> None:
    """Have this process write where it sends itself such a signal.

    Linux tells the parent by which signal a process ended, not who sent it.
    """

    def noting(send: Callable[..., None], mine: Callable[[int], bool]) -> Callable[..., None]:
        def sending(*given: int) -> None:
            if given[-1] in SENT and mine(given[0]):
                with suppress(OSError):
                    traces.write(f"{_ITSELF} {signal.Signals(given[-1]).name}\n")
                    traces.flush()
                    faulthandler.dump_traceback(traces, all_threads=False)
            send(*given)

        return sending

    # mypy knows them as functions of other arguments.
    kill = noting(os.kill, lambda to: to in (os.getpid(), 0, -1, -os.getpgrp()))
    killpg = noting(os.killpg, lambda to: to in (os.getpgrp(), 0))
    os.kill = kill
    os.killpg = killpg
    signal.raise_signal = noting(signal.raise_signal, lambda _: True)


def by_itself(trace: str, number: int) -> bool:
    """Whether a process wrote that it sends itself a signal."""
    return number in SENT and f"{_ITSELF} {signal.Signals(number).name}\n" in trace
