"""One round of one job, in a process of its own."""

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from properties import profiles
from properties.case import Case
from properties.jobs import Job, hypothesis_test
from properties.laws import Subject, Violation
from properties.verdict.report import repro


@dataclass(frozen=True)
class Finding:
    """A case that breaks a law, as small as Hypothesis could make it; None where none was drawn."""

    job: Job
    report: str
    case: Case | None


@dataclass(frozen=True)
class Round:
    """What came of a few examples of one job.

    Args:
        device_lost: the device answers no more in this process, as after an illegal address.
        excused: known failure of the target → how many examples failed with it.
    """

    job: Job
    examples: int
    worst: float
    seconds: float
    finding: Finding | None
    device_lost: bool
    excused: Counter[str]


_SUBJECT: Subject | None = None


def start_worker(target: str, device: str, ledger: str) -> None:
    """Load the kernels once per process. The parent alone answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    global _SUBJECT
    _SUBJECT = make_subject(target, device, ledger)


def make_subject(target: str, device: str, ledger: str) -> Subject:
    from properties.device import activate
    from properties.targets import load
    from properties.targets.ledger import read

    where = activate(device)
    profiles.register()
    return Subject(load(target, where), where, read(ledger, target, where.type))


def play(job: Job, examples: int, seed: int, shrink: bool, announced: Path) -> Round:
    """Run `examples` cases of `job`, and more to make a failing one smaller.

    Args:
        announced: a file that has the case that is run, for whoever sees this process end.
    """
    from hypothesis import Phase, settings
    from hypothesis import seed as seeded

    assert _SUBJECT is not None
    ratios: list[float] = []
    last: list[Case] = []

    def observe(case: Case, ratio: float) -> None:
        ratios.append(ratio)

    def announce(case: Case) -> None:
        last.append(case)
        announced.write_text(case.to_json())

    test = hypothesis_test(job, _SUBJECT, observe, announce)
    profile = settings.get_profile("nightly")
    phases = [phase for phase in profile.phases if shrink or phase is not Phase.shrink]
    # One bug at a time: several would come as a group, of which no report is made.
    limited = settings(profile, max_examples=examples, phases=phases, report_multiple_bugs=False)
    _SUBJECT.ledger.excused.clear()
    started = perf_counter()
    finding = None
    try:
        seeded(seed)(limited(test))()
    except Violation as violation:
        finding = Finding(job, str(violation), violation.case)
    except Exception as error:
        text = f"{job.name}: {type(error).__name__}: {error}"
        finding = untold(job, text, last[-1] if last else None, _SUBJECT)
    seconds = perf_counter() - started
    lost = finding is not None and _device_is_lost()
    excused = Counter(_SUBJECT.ledger.excused)
    worst = max(ratios, default=0.0)
    return Round(job, len(ratios), worst, seconds, finding, lost, excused)


def ended(job: Job, announced: Path, subject: Subject) -> Round:
    """What is known of a round whose process has ended, as with an illegal address."""
    text = announced.read_text() if announced.exists() else ""
    case = Case.from_json(text) if text else None
    finding = untold(job, f"{job.name}: the process that ran it ended", case, subject)
    return Round(job, 0, 0.0, 0.0, finding, True, Counter())


def untold(job: Job, text: str, case: Case | None, subject: Subject) -> Finding:
    """A finding that no law has reported: an error or an end, with the case and its command."""
    if case is not None:
        again = repro(job.law, case, subject.device, subject.target.name)
        text = f"{text}\n{case.line()}\n\n{again}"
    return Finding(job, text, case)


def _device_is_lost() -> bool:
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
