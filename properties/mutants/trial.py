"""Run one law about one case, or one test, in a fresh process, with or without a planted bug."""

import signal
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from properties.case import Case
from properties.mutants.edit import Edit

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Args:
        caught_by: the law, or the type of the error that ended the run; None if the law held.
        report: what was printed.
        seconds: how long it took, with all that is compiled but without the start of a process.
    """

    caught_by: str | None
    report: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class LawAbout:
    """A law and the case that it has to hold for."""

    law: str
    case: Case


@dataclass(frozen=True)
class TestAt:
    """A pytest node, "kernels/layers/test_rotary.py::test_name"."""

    __test__ = False

    node: str


Pinned = LawAbout | TestAt


def try_pinned(pinned: Pinned, target: str, device: str, edit: Edit | None) -> Outcome:
    """Judge one case, or run one test. The edit is made before the project is imported.

    Raises:
        ValueError: the edit does not apply, or there is no such test, or it was skipped.
    """
    started = perf_counter()
    if edit is not None:
        edit.plant()
    if isinstance(pinned, TestAt):
        outcome = _run_test(pinned, device)
    else:
        outcome = _judge(pinned, target, device)
    return replace(outcome, seconds=perf_counter() - started)


def _judge(pinned: LawAbout, target: str, device: str) -> Outcome:
    from properties.device import activate
    from properties.laws import LAWS, Subject, Violation
    from properties.targets import load, scope

    where = activate(device)
    case = pinned.case
    subject = Subject(load(target, where), where)
    op = scope.declared(subject.target, case.op, case.mode)
    try:
        LAWS[pinned.law](op, case, subject)
    except Violation as violation:
        return Outcome(violation.law, str(violation))
    except Exception as error:
        return Outcome(type(error).__name__, str(error))
    return Outcome(None)


def _run_test(pinned: TestAt, device: str) -> Outcome:
    """Run one pytest node in this process, with its output kept for the report."""
    import io
    from contextlib import redirect_stderr, redirect_stdout

    import pytest

    root = Path(__file__).parents[2]
    printed = io.StringIO()
    watch = _Skips()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--device", device]
    options.append("--hypothesis-profile=trial")
    with redirect_stdout(printed), redirect_stderr(printed):
        code = pytest.main([*options, "--rootdir", str(root), str(root / pinned.node)], [watch])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"test: {pinned.node} did not run: {printed.getvalue()[-2000:]}")
    if watch.skipped:
        raise ValueError(f"test: {pinned.node} was skipped: {watch.skipped}")
    return Outcome(None if code == pytest.ExitCode.OK else "test", printed.getvalue())


class _Skips:
    """A plugin of pytest that remembers why a test was skipped."""

    def __init__(self) -> None:
        self.skipped = ""

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        if report.skipped:
            self.skipped = report.longreprtext


class Laboratory:
    """Processes for trials, forked from one that has imported the libraries but no kernel."""

    def __init__(self, target: str, device: str, workers: int = 1) -> None:
        context = get_context("forkserver")
        # Custom ops import torch._dynamo on their first call, which takes longer than a trial.
        libraries = ["torch", "torch._dynamo", "triton", "hypothesis", "jaxtyping", "numpy"]
        context.set_forkserver_preload(libraries)
        self.target = target
        self.device = device
        self.pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_leave_ctrl_c_to_the_parent,
            max_tasks_per_child=1,
        )

    def submit(self, pinned: Pinned, edit: Edit | None = None) -> Future[Outcome]:
        return self.pool.submit(try_pinned, pinned, self.target, self.device, edit)

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
