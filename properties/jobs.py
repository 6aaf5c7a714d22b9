"""A job is one law about one mode of one op in one dtype: a pytest item, or a fuzzer's lane."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from zlib import crc32

from hypothesis import given, target
from hypothesis.strategies import SearchStrategy

from properties.cases.case import Case
from properties.cases.strategies import EXTENTS, FEW_TOKENS, bundles
from properties.catalogue import DTYPES, OPS
from properties.catalogue.op import Op
from properties.laws import LAWS, Law, Subject, Violation
from properties.laws.signature import own_frames
from properties.profiles import EXAMPLES
from properties.targets import Target, scope
from properties.verdict.report import error_report

# Laws about numbers. The others compare an implementation with itself, where one case says more of
# the next; but where a sequence is cut says as much as its numbers, so that splitting has cases of
# its own.
_OF_NUMBERS = ("differential", "exactness")
_OF_THEIR_OWN = (*_OF_NUMBERS, "splitting")
_HALVES = ("bfloat16", "float16")
# How many examples, which are bundles of cases, all jobs of the catalogue get together in the
# profile `ci`. An op, a mode or a law more takes its examples from the others, so that the suite
# does not grow with them. Each job has one at least, so that it does grow once there are more than
# twice as many jobs.
EXAMPLES_OF_CI = 3988
# A run of few jobs, as after a change of one op, draws more for each: up to so many times, while
# all together have no more than this part of what a run of all jobs draws.
_MOST_TIMES, _PART_FOR_FEW = 4.0, 1 / 5


@dataclass(frozen=True)
class Job:
    op: str
    mode: str
    law: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.op}-{self.mode}-{self.law}-{self.dtype}"

    @property
    def draws_for_itself(self) -> bool:
        """Whether no other job draws the same cases."""
        return self.law in _OF_THEIR_OWN

    def share(self, examples: int, times: float = 1.0) -> int:
        """How many of a profile's examples the job gets, `times` as many as in a run of all jobs.

        Twice as many for the law that asks the oracle about everything, all of them for the other
        law about numbers, half of them for another, and half of that for a wrapper, whose kernels
        are another op's. An op of one mode gets three times as many where the oracle judges: others
        have several modes for what may go wrong. But a sixth where another job tries nearly the
        same: one 16-bit dtype or the other, and one mode of a wrapper, which is the same lines in
        all modes. In these, laws take turns.

        All of this in proportion, where the catalogue has grown past `EXAMPLES_OF_CI`: parts of an
        example are rounded up in some jobs and down in others.
        """
        part = self._wanted(examples) * _proportion(tuple(OPS)) * Fraction(times)
        return max(1, math.floor(part + Fraction(crc32(self.name.encode()), 2**32)))

    def _wanted(self, examples: int) -> int:
        """Its share in a catalogue that has not grown."""
        # Each is a bundle, of two cases or so.
        examples = -(-examples // 2)
        if not self._has_its_turn:
            return max(2, examples // 6)
        halves = (self.law not in _OF_NUMBERS) + (not self._has_kernels)
        times = 2 if self.law == "differential" else 1
        times *= 3 if self.draws_for_itself and len(OPS[self.op].modes) == 1 else 1
        return -(-times * examples >> halves)

    @property
    def _has_kernels(self) -> bool:
        """Of its own, unlike a wrapper."""
        # The interpreter has to be chosen before the kernels are imported.
        from kernels.tiles import TABLE

        return (self.op, self.mode) in TABLE

    @property
    def _has_its_turn(self) -> bool:
        modes = [mode.name for mode in OPS[self.op].modes]
        place = modes.index(self.mode) if self.mode in modes else 0
        turn = list(LAWS).index(self.law) + list(OPS).index(self.op)
        if self.dtype in _HALVES and self.dtype != _HALVES[(turn // 2 + place) % len(_HALVES)]:
            return False
        return self._has_kernels or place == turn % len(modes)

    @property
    def seed_key(self) -> str:
        """Jobs of one seed draw the same cases where nothing is left to chance.

        A law about numbers or cuts has a seed of its own. The others of a mode and dtype share
        one: a case says something else to each, and its kernels are compiled once for all.
        """
        return self.name if self.draws_for_itself else f"{self.op}-{self.mode}-{self.dtype}"

    @property
    def check(self) -> Law:
        return LAWS[self.law]


def times(jobs: Iterable[Job], examples: int) -> float:
    """How many times its share of a profile's examples each job of a run of these gets."""
    drawn = sum(job.share(examples) for job in jobs)
    return min(_MOST_TIMES, max(1.0, _PART_FOR_FEW * EXAMPLES_OF_CI / max(drawn, 1)))


@cache
def _proportion(ops: tuple[str, ...]) -> Fraction:
    """The part of the examples that jobs want which they get."""
    wanted = sum(
        Job(op.name, mode.name, law, dtype)._wanted(EXAMPLES)
        for op in map(OPS.__getitem__, ops)
        for mode in op.modes
        for law in op.laws
        for dtype in op.dtypes
    )
    return min(Fraction(1), Fraction(EXAMPLES_OF_CI, wanted))


@dataclass(frozen=True)
class Selection:
    """Which jobs are wanted; an empty tuple means all."""

    ops: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def jobs(self, target: Target) -> list[Job]:
        """The jobs that the target has and that are wanted, in the order of the catalogue.

        Raises:
            ValueError: a name that is unknown, or names that no job has together.
        """
        modes = {op.name: target.modes(op) for op in OPS.values()}
        known = {
            "op": (self.ops, tuple(OPS)),
            "mode": (self.modes, tuple(dict.fromkeys(sum(modes.values(), ())))),
            "law": (self.laws, tuple(LAWS)),
            "dtype": (self.dtypes, DTYPES),
        }
        for what, (wanted, names) in known.items():
            for name in wanted:
                if name not in names:
                    raise ValueError(f"{what}: {name!r}, expected one of {', '.join(names)}")
        chosen = [job for job in _jobs(target) if self._wants(job)]
        if not chosen:
            asked = [" or ".join(names) for _, (names, _) in known.items() if names]
            raise ValueError(f"target {target.name}: it has nothing that is {' and '.join(asked)}")
        return chosen

    def _wants(self, job: Job) -> bool:
        return (
            _wanted(job.op, self.ops)
            and _wanted(job.mode, self.modes)
            and _wanted(job.law, self.laws)
            and _wanted(job.dtype, self.dtypes)
        )


def _jobs(target: Target) -> Iterator[Job]:
    for op in OPS.values():
        for mode in target.modes(op):
            for law in scope.laws(target, op.name, mode):
                for dtype in target.declaration(op, mode).dtypes:
                    yield Job(op.name, mode, law, dtype)


def _wanted(name: str, names: Sequence[str]) -> bool:
    return not names or name in names


def _ignore(*_: object) -> None:
    return None


def judge(law: str, case: Case, subject: Subject) -> float | None:
    """Judge a case by a law: the worst error as a fraction of its budget.

    Returns:
        None where the case fails as the target is known to.

    Raises:
        Violation: the law does not hold, or its calls raise another error than they may.
    """
    subject.ledger.start()
    op = scope.declared(subject.target, case.op, case.mode)
    # A report has the case as the law has it.
    case = LAWS[law].adapt(op, case)
    try:
        ratio = LAWS[law].check(op, case, subject)
    except Violation:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, Exception) and subject.ledger.excuses(error):
            return None
        raise raised(law, case, subject, error) from error
    return None if subject.ledger.used else ratio


def raised(law: str, case: Case, subject: Subject, error: BaseException) -> Violation:
    """The violation that an error of a target is."""
    frames = own_frames(error)
    text = error_report(law, case, error, frames, subject.device, subject.target.name)
    return Violation(law, case, text, error).of_its_own_type()


def hypothesis_test(
    job: Job,
    subject: Subject,
    observe: Callable[[Case, float], None] = _ignore,
    announce: Callable[[Case], None] = _ignore,
) -> Callable[[], None]:
    """The job as a Hypothesis test.

    Args:
        observe: told each case that passed, and its worst error as a fraction of the budget.
        announce: told each case before it runs.
    """

    def judged(case: Case) -> float:
        announce(case)
        ratio = judge(job.law, case, subject)
        if ratio is None:
            return 0.0
        observe(case, ratio)
        return ratio

    def check(bundle: list[Case]) -> None:
        ratio = max(map(judged, bundle))
        if ratio > 0:
            target(ratio, label="error / budget")

    return drawing(job, subject.target, check)


def drawing(job: Job, whose: Target, check: Callable[[list[Case]], None]) -> Callable[[], None]:
    """A Hypothesis test that calls `check` with each bundle of the job's cases.

    pytest and the fuzzer run the same function under the same name, so what one of them finds lies
    in Hypothesis' database for the other.
    """

    def test(bundle: list[Case]) -> None:
        check(bundle)

    # The database tells tests apart by name, and other targets draw otherwise.
    owner = "" if whose.name == "ours" else f"-of-{whose.name}"
    test.__name__ = test.__qualname__ = re.sub(r"\W", "_", job.name + owner)
    # Hypothesis goes by the source, which all jobs share, and by this: by no name.
    seed = (job.seed_key + owner).encode()
    test._hypothesis_internal_add_digest = seed  # type: ignore[attr-defined]
    op = scope.declared(whose, job.op, job.mode)
    wrapped: Callable[[], None] = given(drawn(job, op, whose))(test)
    return wrapped


def drawn(job: Job, op: Op, target: Target) -> SearchStrategy[list[Case]]:
    """The cases of a job in bundles, before its law adapts them."""
    # Of a law that compares an implementation with itself, by several calls, each case costs more.
    # Thousands of tokens are for laws that call once: of others each call would take as long.
    extents, most = (EXTENTS, 4) if job.draws_for_itself else (FEW_TOKENS, 2)
    return bundles(op, op.mode(job.mode), job.dtype, target, extents=extents, most=most)
