"""The target that a worker loads, and its answer about a case."""

from dataclasses import dataclass
from typing import Protocol

import torch

from properties import profiles
from properties.cases.case import Case
from properties.laws import Subject
from properties.laws.fingerprint import Fingerprint
from properties.simulator import Stuck
from properties.verdict.excess import Excess
from properties.verdict.picture import Picture
from properties.verdict.report import Repro

# How a process ends that is killed at its time limit.
HANGS = "hangs"


@dataclass(frozen=True)
class Origin:
    """The target that a worker loads, its device, and its ledger."""

    target: str
    device: str
    ledger: str

    def subject(self) -> Subject:
        """Load the target in this process.

        Raises:
            ValueError: the target or ledger cannot be loaded, or the device is missing.
        """
        from properties.device import activate
        from properties.targets import load
        from properties.targets.ledger import read

        where = activate(self.device)
        profiles.register()
        target = load(self.target, where)
        return Subject(target, where, read(self.ledger, self.target, where.type))

    def repro(self, law: str, case: Case) -> Repro:
        """How to repeat a case."""
        where = torch.device("cuda" if self.device == "cuda" else "cpu")
        return Repro(law, case, where, self.target)


@dataclass(frozen=True)
class Failure:
    """A case that breaks a law, raises an error, hangs or ends its process.

    Args:
        case: as the law adapted it.
        symptom: as a ledger entry would state it; empty if no entry can excuse it.
        also: fingerprints of other results that differ.
        fatal: the case hangs or ends its process.
        picture: of the result that differs.
        excess: how far the worst result that differs is off.
    """

    fingerprint: Fingerprint
    law: str
    case: Case
    report: str
    symptom: str = ""
    also: tuple[Fingerprint, ...] = ()
    fatal: bool = False
    picture: Picture | None = None
    excess: Excess | None = None

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """The fingerprints of all results that differ."""
        return self.fingerprint, *self.also

    @property
    def hangs(self) -> bool:
        """Whether it timed out, or reached the simulator's turn limit."""
        return self.fingerprint.law == HANGS or self.fingerprint.error == Stuck.__name__


@dataclass(frozen=True)
class Answer:
    """The result of one case.

    Args:
        worst: error as a fraction of its budget.
        excused: known failures of the target that the case showed.
        doubtful: how it failed if the machine may be at fault: out of memory, files or threads,
            killed by someone else, or hanging.
        by_machine: the machine is at fault, however often it fails so: somebody ended its process,
            or the disk is full.
        judged: whether the machine let it be judged at the first attempt.
        spent: the process must be replaced.
        lines: source lines of the kernels that the case launched; none but on the simulator.
        functions: first lines of the target's Python functions that it ran; noted once for each
            mode and each bug of a process.
    """

    worst: float = 0.0
    failure: Failure | None = None
    excused: tuple[str, ...] = ()
    doubtful: str = ""
    by_machine: bool = False
    judged: bool = True
    spent: bool = False
    lines: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


class Stopped(BaseException):
    """The run is over; nobody waits for this answer. Hypothesis does not catch it.

    Args:
        judging: a case had begun, in a process that had loaded the target.
    """

    def __init__(self, judging: bool = False) -> None:
        self.judging = judging


class Lost(BaseException):
    """A worker can judge nothing more, or not this case. Hypothesis does not catch it."""


class Broken(Exception):
    """An error of the suite or of an adapter, as text."""


class Judge(Protocol):
    """Judges cases one by one: a worker here or on another machine."""

    stopped: bool

    def ask(self, law: str, case: Case) -> Answer: ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...
