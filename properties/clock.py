"""How long a process has worked on a case. Waiting for a core does not count, nor the time in which
the whole run was stopped.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

# Seconds in which a thread that has a core is seen to use it.
_MOMENT = 0.05
# Seconds by which a sleep is too long if the process was stopped, as a queue of a cluster may stop
# all of a run; and when sleeps were, and by how much.
_STOPPED = 1.0
_STOPS: list[tuple[float, float]] = []


def pause(seconds: float) -> None:
    """Sleep; clocks of this process do not count what it takes longer."""
    at = monotonic()
    sleep(seconds)
    more = monotonic() - at - seconds
    if more > _STOPPED:
        _STOPS.append((at, more))


@dataclass(frozen=True)
class _Thread:
    """What Linux says about a thread.

    Args:
        runnable: it has a core or waits for one.
        ran: seconds with a core.
        waited: seconds of waits for one, without the wait that goes on.
    """

    runnable: bool = False
    ran: float = 0.0
    waited: float = 0.0


def _threads(process: int) -> dict[int, _Thread]:
    """The threads of a process; none if it has ended."""
    threads = {}
    for folder in Path(f"/proc/{process}/task").glob("*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            ran, waited, _ = (folder / "schedstat").read_text().split()
        except (OSError, ValueError):
            continue
        threads[int(folder.name)] = _Thread(state == "R", int(ran) / 1e9, int(waited) / 1e9)
    return threads


@dataclass(frozen=True)
class Clock:
    """When a process began, as it wrote itself.

    Args:
        at: `monotonic()`.
        threads: what its threads had done by then.
    """

    process: int
    at: float
    threads: Mapping[int, _Thread]

    @classmethod
    def started(cls, process: int) -> "Clock":
        return cls(process, monotonic(), _threads(process))

    @classmethod
    def read(cls, text: str) -> "Clock | None":
        """Parse the last line of a clock that a process wrote; None if it did not begin with one,
        as one that crashed before.
        """
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        clocks = [line for line in lines if line.startswith("[")]
        if not clocks or clocks[0] != lines[0]:
            return None
        process, at, threads = json.loads(clocks[-1])
        return cls(process, at, {int(n): _Thread(ran=r, waited=w) for n, (r, w) in threads.items()})

    @property
    def line(self) -> str:
        threads = {n: (one.ran, one.waited) for n, one in self.threads.items()}
        return json.dumps((self.process, self.at, threads)) + "\n"

    @property
    def ended(self) -> bool:
        """Whether the process has ended; its parent may not have noticed yet."""
        try:
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"

    def seconds(self) -> float:
        """The time in which the process had a core, or slept in all its threads, without stops.

        The thread with most work stands for all: the others may wait for it, or for a core.
        """
        before = _threads(self.process)
        while True:
            sleep(_MOMENT)
            now = _threads(self.process)
            # Linux counts a wait when it ends.
            if not any(one.runnable and one == before.get(n) for n, one in now.items()):
                break
        stopped = sum(more for at, more in [*_STOPS] if at + more > self.at)
        passed = max(0.0, monotonic() - self.at - stopped)
        ran, slept = 0.0, passed
        for number, one in now.items():
            then = self.threads.get(number, _Thread())
            used, waited = one.ran - then.ran, one.waited - then.waited
            ran, slept = max(ran, used), min(slept, passed - used - waited)
        return ran + slept
