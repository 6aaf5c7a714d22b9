"""Fingerprints of failures, which tell two bugs apart and report one bug once."""

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, extract_tb

import hypothesis
import jaxtyping
import numpy
import torch
import triton

from properties.catalogue import OPS
from properties.simulator import SimulationError, Stuck
from properties.targets.ledger import Fault
from properties.verdict import Comparison

_SUITE = Path(__file__).parents[1]
# Code between a law and the kernel that it calls, and libraries above and below the kernel.
_BETWEEN = (
    *(str(_SUITE / name) for name in ("cases", "catalogue", "laws", "verdict", "simulator")),
    *(str(_SUITE / name) for name in ("fuzz/judging.py", "fuzz/sent.py", "suite/limit.py")),
    *(str(_SUITE / f"{name}.py") for name in ("jobs", "device", "interpreter")),
    *(str(_SUITE / "targets" / f"{name}.py") for name in ("adapter", "ledger", "ours", "packs")),
    *(folder for one in (hypothesis, jaxtyping, numpy, torch, triton) for folder in one.__path__),
)
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = sysconfig.get_path("purelib")


@dataclass(frozen=True)
class Fingerprint:
    """Failures with one fingerprint count as one bug.

    Args:
        family: folder of the op's page in `reference`.
        law: the law that fails, or how the process ended: "hangs", "ends with SIGSEGV".
        output: the result that differs, or the law's message without its numbers.
        error: type of the exception.
        place: source line of the kernel or of the target's code that fails; empty if unknown.
    """

    family: str
    law: str
    output: str = ""
    error: str = ""
    place: str = ""

    @property
    def bug(self) -> "str | Fingerprint":
        """The source line, which failures of one bug share; without one, the whole fingerprint."""
        return self.place or self

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.family, self.law, self.error or self.output)))
        return f"{what} at {self.place}" if self.place else what


def family(op: str) -> str:
    """Folder of the op's page: "linear"."""
    return OPS[op].oracle.__module__.split(".")[-2]


def fingerprint(op: str, law: str, fault: Fault) -> Fingerprint:
    if isinstance(fault, Comparison):
        return Fingerprint(family(op), law, fault.name)
    if isinstance(fault, str):
        sentence = fault.partition(":")[0]
        return Fingerprint(family(op), law, re.sub(r"-?\d[\d.e+-]*|\[.*?\]", "#", sentence))
    return Fingerprint(family(op), law, error=type(fault).__name__, place=place(fault))


def place(error: BaseException) -> str:
    """The source line that raised an error: the kernel's, else the last one of the target.

    That of a loop which the simulator ends is the one of a loop which takes too long.
    """
    frames = own_frames(error)
    if isinstance(error, Stuck) and frames:
        return place_of_loop(frames[-1])
    if isinstance(error, SimulationError):
        location = getattr(error, "location", None)
        if location is not None and location.line:
            return f"{short(location.file)}:{location.line}"
    return f"{short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def place_of_loop(frame: FrameSummary) -> str:
    """The function that runs an endless loop, which may be interrupted at any of its lines."""
    return f"{short(frame.filename)} in {frame.name}"


def own_frames(error: BaseException) -> list[FrameSummary]:
    """The traceback's frames in the target's own code, outermost first."""
    return [frame for frame in extract_tb(error.__traceback__) if is_own(frame.filename)]


def is_own(file: str) -> bool:
    """Whether a file belongs to a target, not to this suite, its libraries or Python."""
    if file.startswith("<") or file.startswith(_BETWEEN):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STANDARD)


def short(file: str) -> str:
    """The path relative to its import root, the same on all machines."""
    path = Path(file)
    folders = (Path(folder).absolute() for folder in (*sys.path, str(_SUITE.parent)))
    above = [folder for folder in folders if path.is_relative_to(folder)]
    return str(path.relative_to(max(above, key=lambda one: len(one.parts)))) if above else file
