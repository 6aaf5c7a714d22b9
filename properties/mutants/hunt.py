"""Try mutants on the checks that run their code: each alone on the most effective checks, then all
survivors together on everything.
"""

import hashlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate, groupby, zip_longest
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from properties import HOME, ROOT, package_of
from properties.catalogue import OPS
from properties.jobs import Job
from properties.laws import LAWS
from properties.mutants.fates import Fate, Fates
from properties.mutants.killers import Killers, ranked
from properties.mutants.line_coverage import below
from properties.mutants.mutant import PACKAGES, Mutant, combined
from properties.mutants.survey import (
    Check,
    SuiteFails,
    Surveys,
    failing_cases,
    files_of_tests,
    of_job,
    of_tests,
    passing_checks,
)
from properties.planting.closure import KERNELS, closure, digest
from properties.planting.fork_pool import ForkPool, TrialDied
from properties.planting.op_modules import OpModules
from properties.planting.trial import (
    LIBRARIES,
    Ended,
    LawAbout,
    Outcome,
    Pinned,
    Setup,
    attempt,
    failing_tests,
)

# Jobs of this law in float32 kill nearly every mutant that all laws in float32 kill, or this law in
# every dtype. Its other jobs run kernels that have tiles for 16 bits alone.
_MOST_TELLING = "differential"
# Checks that killed survivors of `_MOST_TELLING` in float32 in exhaustive runs.
_TELLING = (
    ("written_outputs", "float32"),
    ("plumbing", "float32"),
    ("rejection", "float32"),
    ("layout_invariance", "float32"),
    ("differential", "bfloat16"),
    ("exactness", "bfloat16"),
    ("differential", "float16"),
    ("splitting", "float16"),
)
# `_TELLING` is tried in this many modes, those that run the mutant in the least time. Each wave
# starts checks until it has spent this many seconds.
_MODES, _SPENT = 2, 4.0
# Processor seconds that a trial may take: `_LONGER` times as many as without the edit, plus
# `_COMPILING`; at least `_AT_LEAST`. `_ONE` limits a check run with several mutants, `_AT_MOST` a
# unit or survey.
_LONGER, _COMPILING, _AT_LEAST = 20.0, 10.0, 60.0
_ONE, _AT_MOST = 300, 900
# After this many failures explained by known mutants, rerun the unit instead of bisecting more.
_EXPLAINED = 2


def _place(job: Job) -> tuple[int, int]:
    """Sort key of jobs: by law, float32 first."""
    return list(LAWS).index(job.law), ("float32", "bfloat16", "float16").index(job.dtype)


class Suite:
    """Everything that may notice a mutant, surveyed on demand.

    Args:
        jobs: the laws, modes and dtypes to use.
        folder: where surveys and the oracle's answers are kept.
        tests: whether to use tests too.
        killers: checks that killed mutants of each function before.
        target: whose kernels the laws are about.
        own: the mutated modules by name and file, if they are not of our packages.

    Attributes:
        failing: reports of checks that fail without a mutant and are left out.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        device: str,
        folder: Path,
        workers: int,
        *,
        tests: bool = True,
        killers: Killers = MappingProxyType({}),
        target: str = "ours",
        own: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.killers = {name: ranked(checks) for name, checks in killers.items()}
        self.jobs = sorted(jobs, key=_place)
        self.folder = folder
        self.sources = {name: OpModules.of(OPS[name]) for name in {j.op for j in jobs}}
        self.places = ["kernels"]
        if own:
            made_of = {*own, target.partition(":")[0]}
            self.sources = {op: sources.of_own(made_of) for op, sources in self.sources.items()}
            self.places = [below(path).as_posix() for path in own.values()]
        self.packages = dict.fromkeys(map(package_of, own)) if own else PACKAGES
        answers = {name: sources.oracle for name, sources in self.sources.items()}
        self.setup = Setup(target, device, (folder / "oracle", answers))
        self.surveys = Surveys(folder)
        self.tests = tests
        preload = (*LIBRARIES, "properties.mutants.survey", "properties.planting.warm")
        # Kernels compiled here have their lines recorded.
        cache = os.environ.get("TRITON_SIM_CACHE") or str(folder / "simulator")
        self.pool = ForkPool(preload, workers, device, {"TRITON_SIM_CACHE": cache})
        self._surveyors = ThreadPoolExecutor(workers)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self._checks: dict[str, list[Check]] = {}
        self.failing: list[str] = []

    def close(self, *, at_once: bool) -> None:
        """End all processes: `at_once`, or when they are done."""
        self._surveyors.shutdown(wait=not at_once, cancel_futures=True)
        self.pool.close(at_once=at_once)

    def files_about(self, mutant: Mutant) -> list[str]:
        """Test files that may run a mutant's module: the nearest first, then those with the fewest
        imports.
        """
        sizes = {file: _modules(file) for file in files_of_tests(mutant.package) if self.tests}
        about = [file for file, modules in sizes.items() if mutant.module in modules]
        return sorted(about, key=lambda file: (-_shared(file, mutant.path), len(sizes[file])))

    def jobs_about(self, mutant: Mutant) -> list[Job]:
        return [j for j in self.jobs if mutant.module in self.sources[j.op].kernels]

    def waves(self, mutant: Mutant) -> "Iterator[Wave]":
        """The waves of checks for a mutant alone, in order: killers of its function, differential
        cases, other telling laws, quick tests. If no law runs it, all its tests.
        """
        before = self._counting(mutant)
        if before:
            code = _digest([self.code(mutant), *map(str, before)])
            yield Wave("killers", code, partial(self._standing, before))
        about = self.jobs_about(mutant)
        files = self.files_about(mutant)
        of_files = [digest(_module(file)) for file in files]
        if not about:
            for file, code in zip(files, of_files, strict=True):
                yield Wave(file, code, partial(self._tests, mutant, [file]))
            return
        most = _most_telling(about)
        code = self._code([job for jobs in most or [about] for job in jobs])
        yield Wave("numbers", code, partial(self._numbers, mutant, most or [about]))
        telling = [job for job in about if (job.law, job.dtype) in _TELLING]
        if telling and most:
            laws = partial(self._telling, mutant, most, telling)
            yield Wave("laws", self._code(telling), laws)
        if files:
            tests = partial(self._tests, mutant, files, _SPENT)
            yield Wave("tests", _digest(of_files), tests)

    def _counting(self, mutant: Mutant) -> list[Pinned]:
        """Recorded killers of the mutant's function that belong to this suite."""
        jobs = {(job.law, job.op, job.mode, job.dtype) for job in self.jobs_about(mutant)}
        files = self.files_about(mutant)
        return [
            pinned
            for pinned in self.killers.get(mutant.where, [])
            if (
                (pinned.law, pinned.case.op, pinned.case.mode, pinned.case.dtype) in jobs
                if isinstance(pinned, LawAbout)
                else pinned.kind in files
            )
        ]

    def _standing(self, before: Sequence[Pinned]) -> list[Check]:
        """Keep the tests that pass without a mutant."""
        groups = dict.fromkeys(map(_group, before))
        known = {check.pinned: check for group in groups for check in self.standing_in(group)}
        # Tests first or cases first, not mixed: starting pytest takes as long as a case.
        alike = sorted(before, key=lambda pinned: type(pinned) is not type(before[0]))
        return [known[pinned] for pinned in alike if pinned in known]

    def _numbers(self, mutant: Mutant, most: Sequence[Sequence[Job]]) -> list[Check]:
        reaching = (self._reaching(mutant, jobs) for jobs in most)
        return _within(next(filter(None, reaching), []), _SPENT)

    def _reaching(self, mutant: Mutant, jobs: Sequence[Job]) -> list[Check]:
        """Cases of these jobs that run a mutant, those that run the most lines first."""
        # In parallel if unknown, as threads with other mutants wait for the same surveys.
        surveys = self._surveyors.map(self.checks_of, jobs)
        checks = [check for checks in surveys for check in checks if check.runs(mutant)]
        return sorted(checks, key=lambda check: -check.breadth)

    def _telling(
        self, mutant: Mutant, most: Sequence[Sequence[Job]], jobs: Sequence[Job]
    ) -> list[Check]:
        """Cases of the telling jobs, taken in turn, in the modes that run the mutant (or its
        module) in the least time.
        """
        file = mutant.path.as_posix()
        for of_dtype in most:
            known = [(job, self.checks_of(job)) for job in of_dtype]
            ranked = [
                (not any(c.runs(mutant) for c in checks), sum(c.seconds for c in checks), job)
                for job, checks in known
                if any(file in check.lines for check in checks)
            ]
            if ranked:
                break
        ranked.sort(key=lambda entry: entry[:2])
        modes = [(job.op, job.mode) for _, _, job in ranked[:_MODES]]
        by_job = [self._reaching(mutant, [job]) for job in jobs if (job.op, job.mode) in modes]
        return _within(_in_turn(by_job), _SPENT)

    def _tests(self, mutant: Mutant, files: Sequence[str], limit: float = math.inf) -> list[Check]:
        """Tests that run a mutant, quickest first, from each file in turn."""
        surveys = self._surveyors.map(partial(self.tests_in, package=mutant.package), files)
        reaching = [[test for test in tests if test.runs(mutant)] for tests in surveys]
        by_file = [sorted(tests, key=lambda test: test.seconds) for tests in reaching]
        return _within(_in_turn(by_file), limit)

    def checks_of(self, job: Job) -> list[Check]:
        code = self.sources[job.op].code(job)
        return self._survey(job.name, code, of_job, job, self.setup, self.folder, self.places)

    def tests_in(self, file: str, package: str) -> list[Check]:
        code = digest(_module(file))
        arguments = file, package, self.setup, self.folder
        return self._survey(f"{package}.{file}", code, of_tests, *arguments)

    def standing_in(self, group: str) -> list[Check]:
        """The killers of a group that pass without a mutant."""
        killers = {p for pinned in self.killers.values() for p in pinned if _group(p) == group}
        pinned = sorted(killers, key=str)
        ops = {p.case.op for p in pinned if isinstance(p, LawAbout)}
        code = [self._code([j for j in self.jobs if j.op in ops]), *map(str, pinned)]
        code += [digest(_module(group))] if not ops else []
        return self._survey(f"killers.{group}", _digest(code), passing_checks, pinned, self.setup)

    def code(self, mutant: Mutant) -> str:
        """A digest of everything that may notice a mutant."""
        files = [digest(_module(file)) for file in self.files_about(mutant)]
        return _digest([self._code(self.jobs_about(mutant)), *files])

    def _code(self, jobs: Sequence[Job]) -> str:
        return _digest([f"{j.name} {self.sources[j.op].code(j)}" for j in jobs])

    def _survey(
        self, name: str, code: str, survey: Callable[..., list[Check]], *about: Any
    ) -> list[Check]:
        with self._locks[name]:
            if name not in self._checks:
                checks = self.surveys.known(name, code)
                if checks is None:
                    future = self.pool.submit(survey, *about, seconds=_AT_MOST)
                    try:
                        checks = future.result()
                        self.surveys.keep(name, code, checks)
                    except (SuiteFails, TrialDied) as failure:
                        self.failing.append(f"{name}: {failure}")
                        checks = []
                self._checks[name] = checks
            return self._checks[name]

    def concerned(self, unit: "Unit", mutants: Iterable[Mutant]) -> list[Mutant]:
        """The mutants that a unit runs.

        A file of tests must run a mutant's lines; a mode's most telling cases must run its module,
        in any dtype.
        """
        importing = [m for m in mutants if m.module in unit.modules]
        if not importing:
            return []
        if unit.file:
            checks = self.tests_in(unit.file, unit.package)
            return [m for m in importing if any(check.runs(m) for check in checks)]
        telling = _most_telling(unit.jobs)
        if not telling:
            return importing
        reached: set[str] = set()
        for jobs in telling:
            checks = [check for job in jobs for check in self.checks_of(job)]
            reached |= {file for check in checks for file in check.lines}
            if all(m.path.as_posix() in reached for m in importing):
                break
        return [m for m in importing if m.path.as_posix() in reached]

    def failures(self, unit: "Unit", mutants: Sequence[Mutant]) -> list[Pinned | Ended]:
        """Run a unit with several non-overlapping mutants: return a failing case of each job, or
        each failing test that runs any of them.
        """
        edits, _ = combined(mutants)
        if unit.file:
            checks = self.tests_in(unit.file, unit.package)
            nodes = [str(c.pinned) for c in checks if any(c.runs(m) for m in mutants)]
            future = self.pool.submit(failing_tests, nodes, self.setup, edits, seconds=_AT_MOST)
        else:
            jobs = unit.jobs
            future = self.pool.submit(failing_cases, jobs, self.setup, edits, seconds=_AT_MOST)
        try:
            failures: list[Pinned | Ended] = future.result()
        except TrialDied as death:
            return [_ended(death)]
        return failures

    def fails(self, check: Pinned, mutants: Sequence[Mutant]) -> bool:
        """Whether a check fails with these mutants, which must not overlap."""
        edits, _ = combined(mutants)
        outcome = self.pool.submit(attempt, [check], [], self.setup, edits, seconds=_ONE)
        try:
            return outcome.result().caught_by is not None
        except TrialDied:
            return True

    def attempt(self, checks: Sequence[Check], mutant: Mutant) -> Outcome:
        pinned = [check.pinned for check in checks]
        limits = [_COMPILING + _LONGER * check.seconds for check in checks]
        seconds = round(_AT_LEAST + _LONGER * sum(check.seconds for check in checks))
        future = self.pool.submit(
            attempt, pinned, limits, self.setup, [mutant.edit()], seconds=seconds
        )
        try:
            outcome: Outcome = future.result()
        except TrialDied as death:
            ended = _ended(death)
            return Outcome(ended.how, ended.report, 0, float(seconds))
        return outcome


def _most_telling(jobs: Iterable[Job]) -> list[list[Job]]:
    """The most telling of these jobs, those of each dtype in a list, float32 first."""
    telling = [job for job in jobs if job.law == _MOST_TELLING]
    return [[*same] for _, same in groupby(telling, key=lambda job: job.dtype)]


def _group(pinned: Pinned) -> str:
    """Killers of one mode or one file are checked together."""
    return f"{pinned.case.op}-{pinned.case.mode}" if isinstance(pinned, LawAbout) else pinned.kind


def _ended(death: TrialDied) -> Ended:
    return Ended("time" if death.of_time else "death", str(death))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _module(file: str) -> str:
    return HOME + file.removesuffix(".py").replace("/", ".")


def _shared(file: str, path: Path) -> int:
    return len({*Path(file).parents} & {*path.parents})


@cache
def _modules(file: str) -> frozenset[str]:
    """The modules that a test file imports; a test with a `subject` may run any kernel."""
    subjects = [KERNELS] if "subject" in (ROOT / file).read_text() else []
    return closure([_module(file), *subjects])


@dataclass(frozen=True)
class Wave:
    """Checks that are tried on a mutant alone, in one process.

    Args:
        code: a digest of what its checks are chosen from.
        checks: chooses them.
    """

    name: str
    code: str
    checks: Callable[[], list[Check]]


def _in_turn(lists: Iterable[Sequence[Check]]) -> list[Check]:
    """The first of each, the second of each, and so on."""
    return [check for turn in zip_longest(*lists) for check in turn if check is not None]


def _within(checks: Iterable[Check], seconds: float) -> list[Check]:
    """The first checks, until this many seconds are spent."""
    ends = accumulate((check.seconds for check in checks), initial=0.0)
    return [check for check, before in zip(checks, ends, strict=False) if before < seconds]


def fate_of(mutant: Mutant, suite: Suite, fates: Fates) -> Fate:
    """Try a mutant alone, wave by wave, until a check fails; record each wave that it survives."""
    seconds, tried = 0.0, Counter[str]()
    for wave in suite.waves(mutant):
        key = f"{mutant.key} {wave.name}"
        survived = fates.get(key, wave.code)
        if survived is None:
            fate = _fate_alone(mutant, wave.checks(), suite)
            if fate.caught_by is not None:
                return replace(fate, seconds=seconds + fate.seconds, tried=dict(tried))
            survived = replace(fate, key=key, suite=wave.code)
            fates.add(survived)
        seconds += survived.seconds
        tried.update(survived.tried)
    return Fate(mutant.key, None, "", seconds, dict(tried), suite.code(mutant))


def _fate_alone(mutant: Mutant, checks: Sequence[Check], suite: Suite) -> Fate:
    if not checks:
        return Fate(mutant.key, None)
    outcome = suite.attempt(checks, mutant)
    if outcome.caught_by is None:
        tried = dict(Counter(check.pinned.kind for check in checks))
        return Fate(mutant.key, None, seconds=outcome.seconds, tried=tried)
    check = checks[outcome.number].pinned
    by = outcome.caught_by if isinstance(check, LawAbout) else check.kind
    return Fate(mutant.key, by, str(check), outcome.seconds)


@dataclass(frozen=True)
class Unit:
    """A part of the suite that runs in one process for all mutants that it concerns.

    Args:
        modules: those it imports.
        code: a digest of it.
    """

    name: str
    package: str
    modules: frozenset[str]
    code: str
    jobs: tuple[Job, ...] = ()
    file: str = ""

    def told(self, failure: Pinned | Ended) -> tuple[str, str]:
        """The killer and its check: a law and its case, or a file and its test."""
        if isinstance(failure, Ended):
            return failure.how, self.name
        return failure.kind, str(failure)


def units(suite: Suite, package: str) -> Iterator[Unit]:
    """The units that may notice mutants of a package: test files, which take seconds, then the jobs
    of each mode, which take minutes.
    """
    for file in files_of_tests(package) if suite.tests else ():
        yield Unit(file, package, _modules(file), digest(_module(file)), file=file)
    modes = dict.fromkeys((j.op, j.mode) for j in suite.jobs) if package != "reference" else {}
    for op, mode in modes:
        sources = suite.sources[op]
        jobs = tuple(j for j in suite.jobs if (j.op, j.mode) == (op, mode))
        code = "".join(sources.code(job) for job in jobs)
        yield Unit(f"{op}-{mode}", package, sources.kernels, code, jobs=jobs)


def killed_among(
    mutants: Sequence[Mutant], suite: Suite, fates: Fates, unit: Unit
) -> dict[Mutant, Pinned | Ended]:
    """Plant all mutants that a unit concerns, run it, and find which mutant causes each failure.

    Mutants that change nothing alone are assumed to change nothing together, so one run tests any
    number of survivors. If something fails, bisection finds the mutant that causes it; that one is
    removed and the rest run again. Mutants that fail only with others are tried apart.
    """
    known = fates.get(unit.name, unit.code)
    survived = set(known.tried) if known else set()
    mutants = suite.concerned(unit, [m for m in mutants if m.key not in survived])
    if not mutants:
        return {}
    _, overlapping = combined(mutants)
    together = [m for m in mutants if m not in overlapping]
    failures = suite.failures(unit, together)
    killed: dict[Mutant, Pinned | Ended] = {}
    apart: list[Mutant] = []
    if not failures:
        survived |= {m.key for m in together}
        fates.add(Fate(unit.name, None, tried=dict.fromkeys(survived, 1), suite=unit.code))
        together = []
    elif len(together) == 1:
        killed = dict.fromkeys(together, failures[0])
    else:
        killed, apart = _blamed(together, failures, suite)
    for mutant, failure in killed.items():
        # At once, so that stopping a run of hours loses little.
        fates.add(Fate(mutant.key, *unit.told(failure)))
    left = [m for m in together if m not in killed and m not in apart]
    if not killed and (not apart or not left):
        half = len(together) // 2
        parts = [together[:half], together[half:], overlapping]
    else:
        parts = [left, [*apart, *overlapping]]
    for part in parts:
        killed |= killed_among(part, suite, fates, unit)
    return killed


def _blamed(
    mutants: Sequence[Mutant], failures: Iterable[Pinned | Ended], suite: Suite
) -> tuple[dict[Mutant, Pinned | Ended], list[Mutant]]:
    """Mutants that fail a check alone, and those that fail it only with others.

    The search stops after `_EXPLAINED` failures that need no further mutant.
    """
    killed: dict[Mutant, Pinned | Ended] = {}
    apart: list[Mutant] = []
    explained = 0
    for failure in failures:
        if isinstance(failure, Ended):
            continue
        left = [m for m in mutants if m not in killed and m not in apart]
        blamed = 0
        while left and suite.fails(failure, left):
            last = left[_turning_point(left, failure, suite)]
            if suite.fails(failure, [last]):
                killed[last] = failure
            else:
                apart.append(last)
            left.remove(last)
            blamed += 1
        explained += not blamed
        if explained == _EXPLAINED:
            break
    return killed, apart


def _turning_point(mutants: Sequence[Mutant], check: Pinned, suite: Suite) -> int:
    """The index of the first mutant that, with those before it, makes a check fail. With all of
    them it fails.
    """
    passes, fails = 0, len(mutants)
    while fails - passes > 1:
        middle = (passes + fails) // 2
        if suite.fails(check, mutants[:middle]):
            fails = middle
        else:
            passes = middle
    return fails - 1
