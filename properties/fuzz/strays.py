"""Processes that targets start and leave, which end with the run."""

import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path

# The variable by which a run knows what its targets have started. Its value tells runs apart: the
# id of a process may be another's later, or at the same time in a container.
MARK = "ATTENTION_ORACLES_RUN"


@contextmanager
def marking(run: str) -> Iterator[None]:
    """Give processes that are started inside this context the mark of a run."""
    before = os.environ.get(MARK)
    os.environ[MARK] = run
    try:
        yield
    finally:
        os.environ.pop(MARK, None)
        if before is not None:
            os.environ[MARK] = before


def end_marked(run: str, but: Collection[int | None] = ()) -> list[str]:
    """Kill all processes with the mark of a run, in sessions of their own too.

    Args:
        but: those to leave alone, besides this one.

    Returns:
        Their commands.
    """
    mark = f"{MARK}={run}".encode()
    return _end((one for one in _processes() if mark in _read(one, "environ")), but)


def end_copies() -> list[str]:
    """Kill those that this process has forked, and they again, which show no mark that it was
    given since its start; return their commands.
    """
    own, parents = _read(os.getpid(), "cmdline"), {one: _parent(one) for one in _processes()}
    return _end(
        (one for one in parents if _is_below(one, parents) and _read(one, "cmdline") == own), ()
    )


def _end(processes: Iterable[int], but: Collection[int | None]) -> list[str]:
    # The tracker ends by itself, after the resources that it tracks.
    spared = {os.getpid(), getattr(resource_tracker._resource_tracker, "_pid", None), *but}
    ended = []
    for process in [*processes]:
        command = b" ".join(_read(process, "cmdline")).decode(errors="replace").strip()
        # Some end meanwhile.
        with suppress(OSError):
            if process not in spared:
                os.kill(process, signal.SIGKILL)
                ended.append(command)
    return ended


def _processes() -> Iterator[int]:
    return (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))


def _read(process: int, file: str) -> list[bytes]:
    """The texts in a file of a process; none of one that has ended, or is another user's."""
    with suppress(OSError):
        return Path(f"/proc/{process}/{file}").read_bytes().split(b"\0")
    return []


def _parent(process: int) -> int:
    """The process that started it, or 0."""
    stat = b"".join(_read(process, "stat")).rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


def _is_below(process: int, parents: Mapping[int, int]) -> bool:
    while process := parents.get(process, 0):
        if process == os.getpid():
            return True
    return False
