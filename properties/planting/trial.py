"""Run laws on cases, or tests, in a fresh process, with or without a planted bug."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from time import process_time
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from properties import ROOT
from properties.cases.case import Case
from properties.planting.closure import forget
from properties.planting.edit import Edit, edits_first
from properties.planting.fork_pool import ForkPool

if TYPE_CHECKING:
    from properties.laws import Subject

# Custom ops import torch._dynamo on their first call, which takes longer than a trial.
LIBRARIES = ("torch", "torch._dynamo", "triton", "hypothesis", "jaxtyping", "numpy", "pytest")


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Args:
        caught_by: the law, or the type of the error that ended the run; None if all held.
        report: what was printed.
        number: index of the check that caught it.
        seconds: processor time.
    """

    caught_by: str | None
    report: str = ""
    number: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class LawAbout:
    """A law and a case that it must hold for."""

    law: str
    case: Case

    @property
    def kind(self) -> str:
        """The law, by which checks are counted."""
        return self.law

    def __str__(self) -> str:
        return f"{self.law} {self.case.to_json()}"


@dataclass(frozen=True)
class TestAt:
    """A pytest node, "kernels/layers/test_rotary.py::test_name"."""

    __test__ = False

    node: str

    @property
    def kind(self) -> str:
        """The file, by which checks are counted."""
        return self.node.partition("::")[0]

    def __str__(self) -> str:
        return self.node


Pinned = LawAbout | TestAt


def pinned_of(text: str) -> Pinned:
    """Parse the `str` of a check.

    Raises:
        ValueError: it is neither a node nor a law with a case.
    """
    law, _, case = text.partition(" ")
    return TestAt(text) if "::" in law else LawAbout(law, Case.from_json(case))


@dataclass(frozen=True)
class Ended:
    """A process that ended, or an error raised before any check.

    Args:
        how: "time", "death", or the type of the error.
    """

    how: str
    report: str


class TimeIsUp(BaseException):
    """A law takes many times as long with a planted bug as without."""


@dataclass(frozen=True)
class Setup:
    """The things that a trial loads: a target, its device, and the cache of the oracle's answers.

    Args:
        cache: the arguments of an `OracleCache`; None caches nothing.
    """

    target: str
    device: str
    cache: tuple[Path, Mapping[str, str]] | None = None

    def subject(self) -> "Subject":
        """Load the target in this process, on an activated device."""
        from properties.device import activate
        from properties.laws import Subject
        from properties.planting.oracle_cache import OracleCache
        from properties.targets import load

        where = activate(self.device)
        subject = Subject(load(self.target, where), where)
        return replace(subject, recall=OracleCache(*self.cache)) if self.cache else subject


def attempt(
    pinned: Sequence[Pinned], limits: Sequence[float], setup: Setup, edits: Sequence[Edit]
) -> Outcome:
    """Judge cases or run tests until one fails, with edited modules imported anew.

    Args:
        limits: processor seconds for each check; empty for no limit.
    """
    started = process_time()
    plant(edits)
    outcome, before = Outcome(None), 0
    for _, alike in groupby(pinned, type):
        group = [*alike]
        own = limits[before : before + len(group)]
        tests = [one.node for one in group if isinstance(one, TestAt)]
        if tests:
            outcome = _run_tests(tests, own, setup)
        else:
            outcome = _judge([one for one in group if isinstance(one, LawAbout)], own, setup)
        if outcome.caught_by is not None:
            break
        before += len(group)
    seconds = process_time() - started
    return replace(outcome, number=before + outcome.number, seconds=seconds)


def plant(edits: Sequence[Edit]) -> None:
    """Make edits in this process and forget the modules that depend on them."""
    forget({edit.module for edit in edits})
    for edit in edits:
        edit.plant()


def _judge(pinned: Sequence[LawAbout], limits: Sequence[float], setup: Setup) -> Outcome:
    from properties import scope
    from properties.laws import LAWS, Violation

    subject = None
    for number, one in enumerate(pinned):
        try:
            with _no_longer_than(limits[number] if limits else 0.0):
                # Inside the timer and handler, since an error at a kernel module's import counts
                # too.
                subject = subject or setup.subject()
                op = scope.declared(subject.target, one.case.op, one.case.mode)
                LAWS[one.law](op, one.case, subject)
        except Violation as violation:
            return Outcome(violation.law, str(violation), number)
        except TimeIsUp:
            return Outcome("time", f"more than {limits[number]:.0f} s", number)
        except Exception as error:
            return Outcome(type(error).__name__, str(error), number)
    return Outcome(None)


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` after this much processor time; 0 means no limit."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def failing_tests(nodes: Sequence[str], setup: Setup, edits: Sequence[Edit]) -> list[TestAt]:
    """Run tests of a file with edits made; return those that fail, or the file if it cannot be
    imported.
    """
    plant(edits)
    failed, _ = _run_pytest(nodes, {}, setup)
    return [TestAt(node) for node in failed.nodes]


def _run_tests(nodes: Sequence[str], limits: Sequence[float], setup: Setup) -> Outcome:
    """Run pytest nodes in this process until one fails, and keep the output for the report."""
    failed, printed = _run_pytest(nodes, dict(zip(nodes, limits, strict=False)), setup, "-x")
    if not failed.nodes and not failed.ran:
        raise ValueError(f"test: {', '.join(nodes)} was skipped: {printed[-2000:]}")
    first = failed.nodes[0] if failed.nodes else None
    return Outcome(first, printed, nodes.index(first) if first in nodes else 0)


def pytest_options(setup: Setup) -> list[str]:
    """Options of a run of our tests in a trial: nothing depends on the folder that it begins in."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=trial"]
    options += ["-c", os.devnull, "--rootdir", str(ROOT), "--confcutdir", str(ROOT)]
    # The tests are about our kernels, whatever the laws of the trial are about.
    return [*options, "--target", "ours", "--device", setup.device]


def path_of_node(node: str) -> str:
    """A node below the root."""
    return str(ROOT / node)


def _run_pytest(
    nodes: Sequence[str], limits: Mapping[str, float], setup: Setup, *options: str
) -> tuple["_Failed", str]:
    import io
    from contextlib import redirect_stderr, redirect_stdout

    printed = io.StringIO()
    failed = _Failed(limits)
    given = [*pytest_options(setup), *options, *map(path_of_node, nodes)]
    with redirect_stdout(printed), redirect_stderr(printed):
        code = pytest.main(given, plugins=[failed])
    # A bug may prevent the import of a test file, which counts as a failure.
    ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    if not failed.nodes and code not in ended:
        raise ValueError(f"test: {', '.join(nodes)} did not run: {printed.getvalue()[-2000:]}")
    return failed, printed.getvalue()


class _Failed:
    """A pytest plugin that records failed nodes and ends those that take too long."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self.nodes: list[str] = []
        self.ran = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        edits_first()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with _no_longer_than(self.limits.get(item.nodeid, 0.0)):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran |= report.when == "call" and not report.skipped
        if report.failed and report.nodeid not in self.nodes:
            self.nodes.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.nodes.append(report.nodeid)


class TrialPool:
    """Processes for trials of pinned bugs."""

    def __init__(self, target: str, device: str, workers: int = 1) -> None:
        self.setup = Setup(target, device)
        # The interpreter must be chosen before the kernels are imported.
        warm = () if device == "interpreter" else ("properties.planting.warm",)
        self.pool = ForkPool((*LIBRARIES, *warm), workers, device)

    @property
    def device(self) -> str:
        return self.setup.device

    def submit(self, pinned: Pinned, edit: Edit | None = None) -> "Future[Outcome]":
        edits = [] if edit is None else [edit]
        return self.pool.submit(attempt, [pinned], [], self.setup, edits)

    def __enter__(self) -> "TrialPool":
        return self

    def __exit__(self, *error: Any) -> None:
        self.pool.__exit__(*error)
