"""Workers on the nodes of a Ray cluster, one on each GPU or core.

The main process draws cases and keeps the log and buckets; nodes judge. An example counts when its
answer arrives, so a lost node loses none: its case goes to another node.
"""

import logging
import math
import socket
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from properties.cases.case import Case
from properties.device import resolve
from properties.fuzz.answer import Answer, Lost, Origin, Stopped
from properties.fuzz.fork_server import prepare
from properties.fuzz.worker import Worker, ended, growth
from properties.verdict.report import versions

# How many nodes may be lost with a case before the case is blamed.
_TRIES = 3


class Remote:
    """A worker on some node; if that is lost, on another.

    Args:
        origin: what it loads.
        limit: seconds that a case may take.
        beside: how many workers share a node.
        takes: the resources of a worker, as Ray names them.
    """

    def __init__(self, origin: Origin, limit: float, beside: int, takes: dict[str, float]) -> None:
        self.origin, self.limit, self.beside, self.takes = origin, limit, beside, takes
        self.stopped = False
        self.start()

    def start(self) -> None:
        """Wait for a node with room, and start there."""
        seats = ray.remote(_Seat).options(**self.takes)
        self.seat: ActorHandle = seats.remote(self.origin, self.limit, self.beside, _release())

    def ask(self, law: str, case: Case) -> Answer:
        """Judge one case.

        Raises:
            Stopped: the run ended before the answer.
            Lost: nodes cannot judge at all.
        """
        for _ in range(_TRIES):
            if self.stopped:
                raise Stopped
            try:
                answer: Answer = ray.get(self.seat.ask.remote(law, case))
                return answer
            except RayActorError as error:
                self.close()
                if error.actor_init_failed:
                    self.stopped = True
                    raise Lost(f"a node cannot judge: {error}") from error
                self.start()
        return ended(self.origin, law, case, "is lost with its node")

    def restart(self) -> None:
        try:
            ray.get(self.seat.restart.remote())
        except RayActorError:
            self.close()
            self.start()

    def stop(self) -> None:
        """Release whoever waits for an answer; callable from any thread."""
        self.stopped = True
        self.close()

    def close(self) -> None:
        ray.kill(self.seat)


class _Seat:
    """A worker's process on its node, which ends with this actor."""

    def __init__(self, origin: Origin, limit: float, beside: int, expected: str) -> None:
        if _release() != expected:
            raise ValueError(f"a node has {_release()}, expected {expected}")
        prepare()
        self.worker = Worker(origin, limit, growth(beside))

    def ask(self, law: str, case: Case) -> Answer:
        return self.worker.ask(law, case)

    def restart(self) -> None:
        self.worker.restart()

    def ready(self) -> None:
        """Return when the process has started."""


def crew(address: str, origin: Origin, limit: float, count: int | None) -> list[Remote]:
    """Workers on all nodes of a cluster.

    Args:
        address: host:port, or "auto" for the cluster that contains this machine.
        count: None for one worker per GPU; without GPUs, one per core.

    Raises:
        ValueError: there is no such cluster, or its nodes lack the device.
    """
    try:
        _reach(address)
        with TemporaryDirectory() as folder:
            for package in _packages():
                copytree(package, Path(folder) / package.name, ignore=ignore_patterns("*.pyc"))
            # Nodes run this machine's sources, which are sent now.
            environment = {"working_dir": folder}
            ray.init(
                address,
                runtime_env=environment,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (OSError, ValueError) as error:
        raise ValueError(f"--ray: {address!r}, expected a running cluster: {error}") from error
    engine = resolve(origin.device)
    kind = "GPU" if engine == "cuda" else "CPU"
    having = [node["Resources"][kind] for node in ray.nodes() if kind in node["Resources"]]
    total = int(sum(having))
    if not total:
        raise ValueError(f"--ray: {address!r}, expected a cluster with a {kind}")
    count = count or total
    # Ray counts in units of 1/10000.
    part = min(1.0, math.floor(1e4 * total / count) / 1e4)
    if not part:
        raise ValueError(f"--jobs: {count}, expected at most {10_000 * total}")
    takes = {"num_cpus": 0.0, "num_gpus": 0.0, f"num_{kind.lower()}s": part}
    beside = -(-count // len(having))
    workers = [Remote(replace(origin, device=engine), limit, beside, takes) for _ in range(count)]
    try:
        ray.get(workers[0].seat.ready.remote())
    except RayActorError as error:
        raise ValueError(f"--ray: {address!r}: {error}") from error
    return workers


def _reach(address: str) -> None:
    """Check the address first, since Ray tries for minutes.

    Raises:
        OSError: nobody listens there.
        ValueError: it is no address.
    """
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=5).close()


def _release() -> str:
    """The versions that nodes must share."""
    files = sorted(file for package in _packages() for file in package.rglob("*.py"))
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    return f"{versions()}, sources {digest}"


def _packages() -> Iterator[Path]:
    root = Path(__file__).parents[2]
    for name in ("reference", "kernels", "properties", "regressions"):
        if (root / name).is_dir():
            yield root / name
