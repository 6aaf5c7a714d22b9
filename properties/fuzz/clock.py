"""How long a process has worked on a case. Waiting for a core does not count."""

from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

# Seconds in which a process that has a core is seen to use it.
_MOMENT = 0.05


@dataclass(frozen=True)
class Clock:
    """When a process began, as it wrote in a file.

    Args:
        at: `monotonic()`.
        waited: seconds that its first thread had waited for a core by then.
    """

    process: int
    at: float
    waited: float

    @classmethod
    def started(cls, process: int) -> "Clock":
        return cls(process, monotonic(), _Scheduling.of(process).waited)

    @classmethod
    def read(cls, path: Path) -> "Clock | None":
        """Parse the first line of a file; None if there is none yet."""
        line, end, _ = path.read_text(errors="replace").partition("\n")
        if not end:
            return None
        process, at, waited = line.split()
        return cls(int(process), float(at), float(waited))

    @property
    def line(self) -> str:
        return f"{self.process} {self.at} {self.waited}\n"

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return not Path(f"/proc/{self.process}").exists()

    def seconds(self) -> float:
        """The time in which the process had a core or slept."""
        before = _Scheduling.of(self.process)
        while True:
            sleep(_MOMENT)
            after = _Scheduling.of(self.process)
            # Linux counts a wait when it ends.
            if not after.runnable or after != before:
                return monotonic() - self.at - (after.waited - self.waited)
            before = after


@dataclass(frozen=True)
class _Scheduling:
    """What Linux says about the first thread of a process: nothing if it has ended.

    Args:
        runnable: it has a core or waits for one.
        ran: seconds with a core.
        waited: seconds of waits for one, without the wait that goes on.
    """

    runnable: bool = False
    ran: float = 0.0
    waited: float = 0.0

    @classmethod
    def of(cls, process: int) -> "_Scheduling":
        folder = Path(f"/proc/{process}")
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            ran, waited, _ = (folder / "schedstat").read_text().split()
        except (OSError, ValueError):
            return cls()
        return cls(state == "R", int(ran) / 1e9, int(waited) / 1e9)
