"""Try mutants on what runs their code: each alone on the most telling checks, then all that survive
together on everything."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from hypothesis import settings

from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.jobs import Job
from properties.laws import LAWS
from properties.mutants.closure import ROOT, closure, digest
from properties.mutants.edit import Edit
from properties.mutants.mutant import Mutant, combined
from properties.mutants.nursery import Nursery, TrialDied
from properties.mutants.reach import meets
from properties.mutants.survey import (
    Check,
    SuiteFails,
    Surveys,
    failing_cases,
    files_of_tests,
    of_job,
    of_tests,
)
from properties.mutants.trial import (
    LIBRARIES,
    Bench,
    Ended,
    LawAbout,
    Outcome,
    Pinned,
    TestAt,
    attempt,
    failing_tests,
)
from properties.mutants.verdicts import Verdict, Verdicts
from properties.targets import Target

# A trial may take so many times as long as the check does without an edit, and some seconds for
# what has to be compiled.
_LONGER, _COMPILING = 20.0, 10.0
_AT_LEAST = 60.0
# Where so many failures are those of mutants that are known by then, running all of a unit again
# tells more than to ask of each.
_EXPLAINED = 2
# Of one check, and of all that a unit or a survey runs, which takes a minute or two.
_ONE, _AT_MOST = 300, 900


# The law and the dtype that are tried on each mutant alone, by its operator. Of 590 mutants that a
# wider choice killed (all laws in float32, numbers in every dtype) the oracle's numbers in float32
# killed 579.
_TELLING = {"other": ("written_outputs", "float32"), "precision": ("differential", "bfloat16")}
_OFTEN_TELLING = ("differential", "float32")


def _tells(job: Job, mutant: Mutant) -> bool:
    return (job.law, job.dtype) == _TELLING.get(mutant.operator, _OFTEN_TELLING)


def _place(job: Job) -> tuple[int, int]:
    """Where a job comes: law by law, in float32 first."""
    return list(LAWS).index(job.law), ("float32", "bfloat16", "float16").index(job.dtype)


@dataclass(frozen=True)
class Sources:
    """The modules that an op is made of."""

    kernels: frozenset[str]
    reference: frozenset[str]
    declaration: str

    @classmethod
    def of(cls, op: Op, target: Target) -> "Sources":
        oracles = {f.__module__ for f in (op.oracle, op.second_form, op.quiet_form)}
        return cls(
            closure([target.function(op).__module__], lists=False),
            closure(oracles, lists=False),
            op.work.__module__,
        )

    @property
    def modules(self) -> frozenset[str]:
        """Those whose mutants are the op's."""
        return self.kernels | self.reference

    def code(self, job: Job) -> str:
        """A digest of what decides which cases a job draws and what they run."""
        law = f"properties.laws.{job.law}"
        suite = {"properties.strategies", law, self.declaration}
        code = digest(*suite, *self.kernels, *self.reference, lists=False)
        return f"{code} {job.share(settings.get_profile('ci').max_examples)}"

    @property
    def oracle(self) -> str:
        """A digest of what decides what the oracle says, and how far off one may be."""
        judge = {"properties.laws.judge", self.declaration}
        return digest(*judge, *self.reference, lists=False)


class Suite:
    """All that may notice a mutant, surveyed when it is first asked for.

    Args:
        jobs: the laws, modes and dtypes that count.
        folder: where surveys and answers of the oracle are kept.
        tests: whether tests count as well.

    Attributes:
        failing: reports of what fails as the code stands, and is left out.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        target: Target,
        device: str,
        folder: Path,
        workers: int,
        *,
        tests: bool = True,
    ) -> None:
        self.jobs = sorted(jobs, key=_place)
        self.folder = folder
        self.sources = {name: Sources.of(OPS[name], target) for name in {j.op for j in jobs}}
        answers = {name: sources.oracle for name, sources in self.sources.items()}
        self.bench = Bench("ours", device, (folder / "oracle", answers))
        self.surveys = Surveys(folder)
        self.tests = tests
        preload = (*LIBRARIES, "properties.mutants.warm")
        # Which lines a kernel has is known of what is compiled there.
        kept = os.environ.get("TRITON_SIM_CACHE") or str(folder / "simulator")
        self.nursery = Nursery(preload, workers, device, {"TRITON_SIM_CACHE": kept})
        self._surveyors = ThreadPoolExecutor(workers)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self._checks: dict[str, list[Check]] = {}
        self.failing: list[str] = []

    def close(self, *, at_once: bool) -> None:
        """End all processes: `at_once`, or when they are done."""
        self._surveyors.shutdown(wait=not at_once, cancel_futures=True)
        self.nursery.close(at_once=at_once)

    def files_about(self, mutant: Mutant) -> list[str]:
        """The files of tests that may run the module of a mutant: those nearest to it first, and of
        these those made of least."""
        sizes = {file: _modules(file) for file in files_of_tests(mutant.package) if self.tests}
        about = [file for file, modules in sizes.items() if mutant.module in modules]
        return sorted(about, key=lambda file: (-_shared(file, mutant.path), len(sizes[file])))

    def jobs_about(self, mutant: Mutant) -> list[Job]:
        """The jobs that may run the module of a mutant."""
        return [j for j in self.jobs if mutant.module in self.sources[j.op].kernels]

    def tried_alone(self, mutant: Mutant) -> list[Job]:
        """The jobs that are tried on a mutant alone: the telling ones, or all if none of those is
        asked for."""
        about = self.jobs_about(mutant)
        return [job for job in about if _tells(job, mutant)] or about

    def waves(self, mutant: Mutant) -> Iterator[list[Check]]:
        """The checks that run a mutant's code and are tried on it alone, in their order.

        Where no law runs it these are all tests.
        """
        about = self.tried_alone(mutant)
        if about:
            # Side by side where they are not known yet: whoever tries another mutant waits too.
            surveys = self._surveyors.map(self.checks_of, about)
            yield _in_order(mutant, [check for checks in surveys for check in checks])
        else:
            for file in self.files_about(mutant):
                yield _in_order(mutant, self.tests_in(file, mutant.package))

    def checks_of(self, job: Job) -> list[Check]:
        code = self.sources[job.op].code(job)
        return self._survey(job.name, code, of_job, job, self.bench, self.folder)

    def tests_in(self, file: str, package: str) -> list[Check]:
        code = digest(_module(file))
        arguments = file, package, self.bench, self.folder
        return self._survey(f"{package}.{file}", code, of_tests, *arguments)

    def code(self, mutant: Mutant, *, alone: bool = False) -> str:
        """A digest of all that may notice a mutant, or of what is tried on it alone."""
        jobs = self.tried_alone(mutant) if alone else self.jobs_about(mutant)
        codes = [f"{j.name} {self.sources[j.op].code(j)}" for j in jobs]
        if not (alone and jobs):
            codes += [digest(_module(file)) for file in self.files_about(mutant)]
        return hashlib.sha256("\n".join(codes).encode()).hexdigest()[:24]

    def _survey(
        self, name: str, code: str, survey: Callable[..., list[Check]], *about: Any
    ) -> list[Check]:
        with self._locks[name]:
            if name not in self._checks:
                checks = self.surveys.known(name, code)
                if checks is None:
                    future = self.nursery.submit(survey, *about, seconds=_AT_MOST)
                    try:
                        checks = future.result()
                        self.surveys.keep(name, code, checks)
                    except (SuiteFails, TrialDied) as failure:
                        self.failing.append(f"{name}: {failure}")
                        checks = []
                self._checks[name] = checks
            return self._checks[name]

    def failures(self, unit: "Unit", edits: Sequence[Edit]) -> list[Pinned | Ended]:
        """Run all of a unit with edits made: what fails, one case of each job or each test."""
        what = (failing_tests, unit.file) if unit.file else (failing_cases, unit.jobs)
        future = self.nursery.submit(*what, self.bench, edits, seconds=_AT_MOST)
        try:
            found: list[Pinned | Ended] = future.result()
        except TrialDied as death:
            return [_ended(death)]
        return found

    def fails(self, check: Pinned, mutants: Sequence[Mutant]) -> bool:
        """Whether a check fails with the edits of these mutants, none of which overlap."""
        edits, _ = combined(mutants)
        outcome = self.nursery.submit(attempt, [check], [], self.bench, edits, seconds=_ONE)
        try:
            return outcome.result().caught_by is not None
        except TrialDied:
            return True

    def attempt(self, checks: Sequence[Check], mutant: Mutant) -> Outcome:
        """Try a mutant on checks, in a process of its own."""
        pinned = [check.pinned for check in checks]
        limits = [_COMPILING + _LONGER * check.seconds for check in checks]
        seconds = round(_AT_LEAST + _LONGER * sum(check.seconds for check in checks))
        future = self.nursery.submit(
            attempt, pinned, limits, self.bench, [mutant.edit()], seconds=seconds
        )
        try:
            outcome: Outcome = future.result()
        except TrialDied as death:
            ended = _ended(death)
            return Outcome(ended.how, ended.report, 0, float(seconds))
        return outcome


def _ended(death: TrialDied) -> Ended:
    return Ended("time" if death.of_time else "death", str(death))


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _shared(file: str, path: Path) -> int:
    """How many folders a file and a path have in common."""
    return len({*Path(file).parents} & {*path.parents})


@cache
def _modules(file: str) -> frozenset[str]:
    """The modules that a file of tests is made of; a subject is any kernel."""
    subjects = ["kernels"] if "subject" in (ROOT / file).read_text() else []
    return closure([_module(file), *subjects])


def _in_order(mutant: Mutant, checks: Iterable[Check]) -> list[Check]:
    """The checks that run the code of a mutant: cases that run most lines first, tests by time."""
    reaching = [c for c in checks if meets(c.lines, mutant.path, mutant.lines)]
    if any(isinstance(check.pinned, TestAt) for check in reaching):
        return sorted(reaching, key=lambda check: check.seconds)
    return sorted(reaching, key=lambda check: -check.breadth)


def judge(mutant: Mutant, suite: Suite) -> Verdict:
    """Try a mutant alone until a check fails, or those that are tried so have passed."""
    seconds, tried = 0.0, Counter[str]()
    for checks in suite.waves(mutant):
        if not checks:
            continue
        outcome = suite.attempt(checks, mutant)
        seconds += outcome.seconds
        if outcome.caught_by is not None:
            check = checks[outcome.number]
            if isinstance(check.pinned, TestAt):
                told = check.name, check.pinned.node
            else:
                told = outcome.caught_by, check.name
            return Verdict(mutant.key, *told, seconds, dict(tried))
        tried.update(_kind(check) for check in checks)
    return Verdict(mutant.key, None, "", seconds, dict(tried), suite.code(mutant))


def _kind(check: Check) -> str:
    return check.pinned.law if isinstance(check.pinned, LawAbout) else check.name


@dataclass(frozen=True)
class Unit:
    """A part of the suite that is run in one process, for all mutants that it concerns.

    Args:
        modules: those that it runs.
        code: a digest of all that it is made of.
    """

    name: str
    package: str
    modules: frozenset[str]
    code: str
    jobs: tuple[Job, ...] = ()
    file: str = ""

    def told(self, failure: Pinned | Ended) -> tuple[str, str]:
        """What kills, and which of its checks: a law and the job, or a file and the test."""
        if isinstance(failure, Ended):
            return failure.how, self.name
        if isinstance(failure, LawAbout):
            return failure.law, f"{self.name}-{failure.law}-{failure.case.dtype}"
        return self.file, failure.node


def units(suite: Suite, package: str) -> Iterator[Unit]:
    """All that may notice an edit of a package: the jobs of each mode, and each file of tests."""
    modes = dict.fromkeys((j.op, j.mode) for j in suite.jobs) if package == "kernels" else {}
    for op, mode in modes:
        sources = suite.sources[op]
        jobs = tuple(j for j in suite.jobs if (j.op, j.mode) == (op, mode))
        code = "".join(sources.code(job) for job in jobs)
        yield Unit(f"{op}-{mode}", package, sources.kernels, code, jobs=jobs)
    for file in files_of_tests(package) if suite.tests else ():
        yield Unit(file, package, _modules(file), digest(_module(file)), file=file)


def killed_among(
    mutants: Sequence[Mutant], suite: Suite, verdicts: Verdicts, unit: Unit
) -> dict[Mutant, Pinned | Ended]:
    """Make the edits of all mutants that a unit concerns, run it, and say what kills which.

    What changes nothing alone changes nothing together: one run is enough for any number of mutants
    that seem to change nothing. Where something fails, halving finds who makes it fail; where that
    finds nobody, as where a process has ended, each half is tried on the whole unit.
    """
    passed = verdicts.get(unit.name, unit.code)
    survived = set(passed.tried) if passed else set()
    mutants = [m for m in mutants if m.module in unit.modules and m.key not in survived]
    if not mutants:
        return {}
    edits, left = combined(mutants)
    failures = suite.failures(unit, edits)
    killed: dict[Mutant, Pinned | Ended] = {}
    if failures and len(mutants) == 1:
        killed = dict.fromkeys(mutants, failures[0])
    elif failures:
        together = [m for m in mutants if m not in left]
        explained = 0
        for failure in failures:
            suspects = [m for m in together if m not in killed]
            guilty = [] if isinstance(failure, Ended) else _guilty(suspects, failure, suite)
            explained += not guilty
            if killed and explained == _EXPLAINED:
                break
            for mutant in guilty:
                killed[mutant] = failure
                # At once: who stops a run that takes hours loses little.
                verdicts.add(Verdict(mutant.key, *unit.told(failure)))
        if killed:
            left = [m for m in mutants if m not in killed]
        else:
            half = len(together) // 2
            for part in (together[:half], together[half:]):
                killed |= killed_among(part, suite, verdicts, unit)
    killed |= killed_among(left, suite, verdicts, unit)
    if not killed:
        survived |= {m.key for m in mutants}
        verdicts.add(Verdict(unit.name, None, tried=dict.fromkeys(survived, 1), suite=unit.code))
    return killed


def _guilty(mutants: Sequence[Mutant], check: Pinned, suite: Suite) -> list[Mutant]:
    """Those that make a check fail alone."""
    if not mutants or not suite.fails(check, mutants):
        return []
    if len(mutants) == 1:
        return [*mutants]
    half = len(mutants) // 2
    return [
        *_guilty(mutants[:half], check, suite),
        *_guilty(mutants[half:], check, suite),
    ]
