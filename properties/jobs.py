"""Jobs, each a pytest item and a task of the fuzzer, and how many examples each draws."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from zlib import crc32

from hypothesis import given, target
from hypothesis.strategies import SearchStrategy

from properties import scope
from properties.cases.case import Case
from properties.cases.extents import EXTENTS, FEW_TOKENS
from properties.cases.strategies import bundles
from properties.catalogue import DTYPES, OPS
from properties.catalogue.op import Op
from properties.device import calling
from properties.laws import LAWS, Run, Subject, Violation
from properties.laws.fingerprint import own_frames
from properties.profiles import EXAMPLES
from properties.targets import Target
from properties.verdict.exceptions import plain
from properties.verdict.report import error_report

# Laws that compare with the oracle. The others compare an implementation with itself, and one case
# serves several of them; but splitting draws its own cases: the cut matters as much as the numbers.
_ORACLE_LAWS = ("differential", "exactness")
_LAWS_WITH_OWN_CASES = (*_ORACLE_LAWS, "splitting")
_16_BITS = ("bfloat16", "float16")
# Examples (bundles of cases) that all jobs get together in the profile `ci`. A new op, mode or law
# takes its examples from the others, so the suite does not grow with the catalogue until there are
# as many jobs: each job has at least one.
EXAMPLES_OF_CI = 1600
# A run of few jobs draws up to `_LARGEST_FACTOR` times as many examples for each, while all
# together stay below `_EXAMPLES_OF_FEW`.
_LARGEST_FACTOR, _EXAMPLES_OF_FEW = 24.0, 1000


@dataclass(frozen=True)
class Job:
    """One law about one mode of one op in one dtype."""

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
        return self.law in _LAWS_WITH_OWN_CASES

    def share(self, max_examples: int, factor: float = 1.0) -> int:
        """The number of a profile's examples for this job, `factor` times as in a run of all jobs.

        A share is a product:

            2 for differential, 1 for exactness, 1/2 for any other law
            1/2 for a wrapper, whose kernels belong to another op
            2 for an op with one mode, if the law draws its own cases: elsewhere modes share them
            7/12 for bfloat16 and for float16, which show nearly the same bugs

        A wrapper runs the same lines in every mode: a law tries one of them in full, and the share
        of the others is 1/6. Once the catalogue outgrows `EXAMPLES_OF_CI`, shares are scaled down,
        to 1 at the least; a hash of the job's name decides how a fraction is rounded. A job that
        rests in a run of all jobs gets none.
        """
        if factor <= 1 and self._rests:
            return 0
        scaled = self._unscaled(max_examples) * _proportion(tuple(OPS))
        part = max(Fraction(1), scaled) * Fraction(factor)
        return math.floor(part + Fraction(crc32(self.name.encode()), 2**32))

    def _unscaled(self, max_examples: int) -> int:
        """The share before scaling."""
        # An example is a bundle of about two cases.
        bundles = -(-max_examples // 2)
        if not self._in_full:
            return max(2, bundles // 6)
        halves = (self.law not in _ORACLE_LAWS) + (not self._has_kernels)
        one_mode = len(OPS[self.op].modes) == 1
        doublings = (self.law == "differential") + (self.draws_for_itself and one_mode)
        share = -(-(bundles << doublings) >> halves)
        return -(-share * 7 // 12) if self.dtype in _16_BITS else share

    @property
    def _has_kernels(self) -> bool:
        """Whether the op has kernels of its own, unlike a wrapper."""
        return OPS[self.op].wraps is None

    @property
    def _in_full(self) -> bool:
        """Whether the law tries this mode in full: of a wrapper it tries one."""
        modes = OPS[self.op].modes_or_reference
        return self._has_kernels or self._mode_index == self._rotation % len(modes)

    @property
    def _rests(self) -> bool:
        """Whether a run of all jobs leaves this one out: a law that compares an implementation
        with itself is tried in one dtype for each mode of an op, in others for its other modes.
        """
        if self.law in _ORACLE_LAWS:
            return False
        dtypes = OPS[self.op].dtypes
        return self.dtype != dtypes[(self._mode_index + self._rotation) % len(dtypes)]

    @property
    def _mode_index(self) -> int:
        """The position of the mode among those of its op."""
        modes = [mode.name for mode in OPS[self.op].modes_or_reference]
        return modes.index(self.mode) if self.mode in modes else 0

    @property
    def _rotation(self) -> int:
        """The offset into modes or dtypes, by which laws and ops try different ones."""
        return list(LAWS).index(self.law) + list(OPS).index(self.op)

    @property
    def seed_key(self) -> str:
        """The key of Hypothesis' seed in pytest: jobs with one key draw the same cases.

        All laws of a mode and dtype share one, so that a kernel is compiled once for all of them.
        """
        return f"{self.op}-{self.mode}-{self.dtype}"


def share_factor(jobs: Iterable[Job], max_examples: int) -> float:
    """How many times its share of examples each of these jobs gets."""
    drawn = sum(max(1, job.share(max_examples)) for job in jobs)
    return min(_LARGEST_FACTOR, max(1.0, _EXAMPLES_OF_FEW / max(drawn, 1)))


def examples_of(job: Job, target: Target, max_examples: int, factor: float = 1.0) -> int:
    """How many examples a job of a target gets of a profile.

    The jobs of any other target get equally many: which of its modes share kernels is not known.
    """
    return job.share(max_examples, factor) if target.name == "ours" else max_examples


@cache
def _proportion(ops: tuple[str, ...]) -> Fraction:
    """The factor that scales the jobs' shares, each at least 1, down to `EXAMPLES_OF_CI`."""
    shares = [
        job._unscaled(EXAMPLES)
        for op in map(OPS.__getitem__, ops)
        for mode in op.modes
        for law in op.laws
        for dtype in op.dtypes
        if not (job := Job(op.name, mode.name, law, dtype))._rests
    ]
    low, high = Fraction(0), Fraction(1)
    # By halves, until the sum of shares is off by less than an example.
    for _ in range(16):
        middle = (low + high) / 2
        fits = sum(max(Fraction(1), middle * share) for share in shares) <= EXAMPLES_OF_CI
        low, high = (middle, high) if fits else (low, middle)
    return high


@dataclass(frozen=True)
class Selection:
    """Which jobs to run; an empty tuple means all."""

    ops: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def jobs(self, target: Target) -> list[Job]:
        """The selected jobs that the target has, in the order of the catalogue.

        Raises:
            ValueError: a name is unknown, no job has all of the names, or the target has nothing at
                all.
        """
        modes = {op.name: target.modes(op) for op in OPS.values()}
        known = {
            "op": (self.ops, tuple(OPS)),
            "mode": (self.modes, tuple(dict.fromkeys(sum(modes.values(), ())))),
            "law": (self.laws, tuple(LAWS)),
            "dtype": (self.dtypes, DTYPES),
        }
        why = [one for one in target.remarks if any(f"{op} (" in one for op in self.ops)]
        for what, (wanted, names) in known.items():
            for name in wanted:
                if name not in names:
                    expected = f"expected one of {', '.join(names)}"
                    raise ValueError("; ".join([f"{what}: {name!r}, {expected}", *why]))
        chosen = [job for job in _jobs(target) if self._wants(job)]
        asked = [f"{what} {' or '.join(names)}" for what, (names, _) in known.items() if names]
        if not chosen and (asked or not (target.caches or target.rotary)):
            told = f"nothing of {' and '.join(asked)}" if asked else "no op"
            raise ValueError("; ".join([f"target {target.name}: it has {told}", *why]))
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
    """Judge a case by a law: return the worst error as a fraction of its budget.

    Returns:
        None if the case fails as the target's ledger expects.

    Raises:
        Violation: the law does not hold, or a call raises an unexpected error.
    """
    subject.ledger.start()
    op = scope.declared(subject.target, case.op, case.mode)
    # The report shows the case as the law adapted it.
    case = LAWS[law].adapt(op, case)
    try:
        with calling():
            ratio = LAWS[law].of_adapted(Run(law, op, case, subject))
    except Violation:
        raise
    except (Exception, SystemExit) as whatever:
        error = plain(whatever)
        if isinstance(error, Exception) and subject.ledger.excuses(error):
            return None
        raise raised(law, case, subject, error) from error
    return None if subject.ledger.used else ratio


def raised(law: str, case: Case, subject: Subject, error: BaseException) -> Violation:
    """The violation of a law about a case in which a target raised an unexpected error."""
    error = plain(error)
    text = error_report(subject.repro(law, case), error, own_frames(error))
    return Violation(law, case, text, error).of_its_own_type()


def hypothesis_test(
    job: Job,
    subject: Subject,
    observe: Callable[[Case, float], None] = _ignore,
    announce: Callable[[Case], None] = _ignore,
    note: Callable[[Violation], None] = _ignore,
) -> Callable[[], None]:
    """The job as a Hypothesis test.

    Args:
        observe: called with each case that passed and its worst error as a fraction of the budget.
        announce: called with each case before it runs.
        note: called with the violation of each case that failed.
    """

    def judged(case: Case) -> float:
        announce(case)
        try:
            ratio = judge(job.law, case, subject)
        except Violation as violation:
            note(violation)
            raise
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

    pytest and the fuzzer run this function under the same name, so they share examples in
    Hypothesis' database.
    """

    def test(bundle: list[Case]) -> None:
        check(bundle)

    # The database finds tests by name, and other targets draw other cases.
    owner = "" if whose.name == "ours" else f"-of-{whose.name}"
    test.__name__ = test.__qualname__ = re.sub(r"\W", "_", job.name + owner)
    # Hypothesis seeds from the source, which all jobs share, and from this digest; not from the
    # name.
    seed = (job.seed_key + owner).encode()
    test._hypothesis_internal_add_digest = seed  # type: ignore[attr-defined]
    op = scope.declared(whose, job.op, job.mode)
    wrapped: Callable[[], None] = given(drawn(job, op, whose))(test)
    return wrapped


def drawn(job: Job, op: Op, target: Target) -> SearchStrategy[list[Case]]:
    """The job's cases in bundles, before its law adapts them."""
    # Laws that compare an implementation with itself make several calls a case, so their bundles
    # are smaller and have no cases of thousands of tokens.
    extents, most, tiny = (EXTENTS, 4, 4) if job.draws_for_itself else (FEW_TOKENS, 2, 0)
    mode = op.mode(job.mode)
    found = bundles(op, mode, job.dtype, target, extents=extents, most=most, tiny=tiny)
    return found if job.law == "context_invariance" else found.map(_not_compiled)


def _not_compiled(bundle: list[Case]) -> list[Case]:
    """Tracing takes as long as ten cases, and `context_invariance` shows that it changes no bit."""
    return [replace(c, context="grad") if c.context == "compiled" else c for c in bundle]
