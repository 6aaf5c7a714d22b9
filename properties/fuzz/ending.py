"""How a run ends: by a signal, or because nobody reads its output; not with its folder."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO, TextIOWrapper, UnsupportedOperation
from time import sleep
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

# Seconds in which Python may exit by itself.
_LEAVING = 5.0


class Output:
    """Standard output, which may be a full disk, a closed terminal or a pipe that nobody reads.

    Attributes:
        lost: why nobody reads it any more; empty while somebody may.
    """

    def __init__(self) -> None:
        # There is none if it was closed before the start.
        self.stream = sys.stdout or StringIO()
        self.lost: list[str] = []
        with suppress(UnsupportedOperation, AttributeError):
            # A copy, as a target's module may close what it takes for its own.
            copy = os.dup(self.stream.fileno())
            self.stream = os.fdopen(copy, "w", encoding=self.stream.encoding)
        if isinstance(self.stream, TextIOWrapper):
            # A terminal may know few characters, and a file's name may be no text.
            self.stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> None:
        with self._tolerating():
            self.stream.write(text)

    def flush(self) -> None:
        with self._tolerating():
            self.stream.flush()

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self.lost.append("the loss of its output")
                # Python would try to write its buffers again when it exits.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def tolerating_a_removed_folder() -> Iterator[None]:
    """Let `os.getcwd` return /proc, in which nobody can write, once the current folder is removed.

    Hypothesis asks for the folder, and each new process does, though neither needs it.
    """
    ask = os.getcwd

    def folder() -> str:
        try:
            return ask()
        except FileNotFoundError:
            return "/proc"

    with patch.object(os, "getcwd", folder):
        yield


@contextmanager
def signals(asked: list[str]) -> Iterator[list[str]]:
    """Collect the names of signals that ask for the end, without other effect.

    They stay without effect while Python exits.

    Args:
        asked: the list to extend; others may extend it too.
    """

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(signal.Signals(number).name)

    # A queue of a cluster may announce the end of a job's time by any of the last three.
    ending = [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
    ending += [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        # Not under nohup.
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in ending}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            # While Python exits, it has no handlers of its own any more.
            signal.signal(number, signal.SIG_IGN if asked else handler)


def leave(code: int) -> NoReturn:
    """End the process, also while compiled code holds a thread of the night, or an adapter a thread
    or an exit handler of its own, for which Python would wait.
    """

    def insist() -> None:
        sleep(_LEAVING)
        os._exit(code)

    # Where the machine has no thread for it, Python waits.
    with suppress(RuntimeError):
        threading.Thread(target=insist, daemon=True).start()
    sys.exit(code)
