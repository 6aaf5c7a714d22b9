"""A survey of the suite without mutants: which lines each check runs, and for how long."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from properties import ROOT
from properties.cases.case import Case
from properties.files import write_atomically
from properties.jobs import Job, examples_of
from properties.mutants.line_coverage import LineCoverage, meets, packed
from properties.mutants.mutant import Mutant
from properties.planting.closure import KERNELS, REFERENCE, forget
from properties.planting.edit import Edit
from properties.planting.trial import (
    Ended,
    LawAbout,
    Pinned,
    Setup,
    TestAt,
    attempt,
    path_of_node,
    pinned_of,
    plant,
    pytest_options,
)

# Tests of tools; of machines; of the laws, which are jobs here; of a ledger; that start processes,
# which a trial may not; that take all of a GPU.
_LEFT_OUT = {
    "bench",
    "test_machines_notice.py",
    "test_laws.py",
    "test_ledger.py",
    "test_compiles.py",
    "test_first_calls.py",
    "test_huge_tensors.py",
}
# Tests that may notice an edit of a package, besides the laws.
_TESTS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels", "properties/suite"),
    "reference": ("reference", "properties/selftest/test_oracles.py"),
}


@dataclass(frozen=True)
class Check:
    """A law on a case, or a test, with what it runs.

    Args:
        seconds: processor time.
        lines: packed, see `line_coverage.packed`.
    """

    pinned: Pinned
    seconds: float
    lines: Mapping[str, str]

    @property
    def breadth(self) -> int:
        return sum(int(numbers, 16).bit_count() for numbers in self.lines.values())

    def runs(self, mutant: Mutant) -> bool:
        return meets(self.lines, mutant.path, mutant.lines)

    def to_json(self) -> dict[str, Any]:
        return {"pinned": str(self.pinned), "seconds": self.seconds, "lines": self.lines}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Check":
        return cls(pinned_of(told["pinned"]), told["seconds"], told["lines"])


class SuiteFails(Exception):
    """A check fails without a mutant, so it cannot be used."""


def of_job(job: Job, setup: Setup, folder: Path, places: Sequence[str]) -> list[Check]:
    """Run the cases that the `ci` profile draws for a job, in this process.

    Args:
        places: where lines are recorded, see `LineCoverage`.
    """
    from hypothesis import settings

    from properties import profiles
    from properties.jobs import hypothesis_test

    profiles.register()
    settings.register_profile("survey", settings.get_profile("ci"), report_multiple_bugs=False)
    settings.load_profile("survey")
    subject = setup.subject()
    checks: list[Check] = []
    reach = LineCoverage(places, folder / "compiled")
    started = 0.0

    def announce(case: Case) -> None:
        nonlocal started
        reach.start()
        started = process_time()

    def observe(case: Case, ratio: float) -> None:
        seconds = process_time() - started
        checks.append(Check(LawAbout(job.law, case), seconds, packed(reach.stop())))

    try:
        # None rests: before a merge the jobs of what has changed are run, and those are few.
        most = max(1, examples_of(job, subject.target, settings().max_examples))
        settings(max_examples=most)(hypothesis_test(job, subject, observe, announce))()
    except Exception as error:
        raise SuiteFails(f"{job.name} fails as the code stands: {error}") from None
    return checks


def failing_cases(
    jobs: Sequence[Job], setup: Setup, edits: Sequence[Edit]
) -> list[LawAbout | Ended]:
    """Run jobs with edits made, as the `ci` profile does; return a failing case of each."""
    plant(edits)
    from hypothesis import Phase, settings

    from properties import profiles
    from properties.jobs import hypothesis_test

    profiles.register()
    ci = settings.get_profile("ci")
    settings.register_profile("unshrunk", ci, phases=[p for p in ci.phases if p != Phase.shrink])
    settings.load_profile("unshrunk")
    try:
        subject = setup.subject()
    except Exception as error:  # from a kernel module's import
        return [Ended(type(error).__name__, str(error))]
    failing: list[LawAbout | Ended] = []
    for job in jobs:
        cases: list[Case] = []
        try:
            most = max(1, examples_of(job, subject.target, ci.max_examples))
            settings(max_examples=most)(hypothesis_test(job, subject, announce=cases.append))()
        except Exception as error:
            known = LawAbout(job.law, cases[-1]) if cases else None
            failing.append(known or Ended(type(error).__name__, str(error)))
    return failing


def of_tests(path: str, package: str, setup: Setup, folder: Path) -> list[Check]:
    """Run the tests of a file in this process, and record their lines in a package."""
    import contextlib
    import io

    import pytest

    _import_anew()
    recorder = _Recorder(LineCoverage([package], folder / "compiled"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*pytest_options(setup), path_of_node(path)], plugins=[recorder])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SuiteFails(f"{path} fails as the code stands:\n{printed.getvalue()[-1000:]}")
    return recorder.checks


def _import_anew() -> None:
    """Import modules anew as a trial does. A check that fails from that alone would kill every
    mutant.
    """
    forget({KERNELS, REFERENCE})


class _Recorder:
    """A pytest plugin that records the lines of each test."""

    def __init__(self, reach: LineCoverage) -> None:
        self.reach = reach
        self.checks: list[Check] = []

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
        from _pytest.runner import runtestprotocol

        started = process_time()
        self.reach.start()
        runtestprotocol(item, nextitem=nextitem)
        lines = packed(self.reach.stop())
        self.checks.append(Check(TestAt(item.nodeid), process_time() - started, lines))
        return True


def passing_checks(pinned: Sequence[Pinned], setup: Setup) -> list[Check]:
    """The checks that pass without a mutant, and their times."""
    _import_anew()
    checks = []
    for pin in pinned:
        try:
            outcome = attempt([pin], [], setup, [])
        except ValueError:  # a test that no longer exists
            continue
        if outcome.caught_by is None:
            checks.append(Check(pin, outcome.seconds, {}))
    return checks


def files_of_tests(package: str) -> Iterator[str]:
    for place in _TESTS.get(package, ()):
        path = ROOT / place
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            name = file.relative_to(ROOT)
            if file.exists() and _LEFT_OUT.isdisjoint(name.parts):
                yield name.as_posix()


class Surveys:
    """Surveys on disk, valid until the code changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def known(self, name: str, code: str) -> list[Check] | None:
        try:
            data = json.loads(self._path(name).read_text())
            return [Check.from_json(c) for c in data["checks"]] if data["code"] == code else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, name: str, code: str, checks: Sequence[Check]) -> None:
        path = self._path(name)
        data = {"code": code, "checks": [c.to_json() for c in checks]}
        # On a full disk the next run makes it again.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(data))

    def _path(self, name: str) -> Path:
        return self.folder / "surveys" / f"{name.replace('/', '.')}.json"
