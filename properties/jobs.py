"""A job is one law about one mode of one op in one dtype: a pytest item, or a fuzzer's lane."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hypothesis import given, target

from properties.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.laws import LAWS, Law, Subject
from properties.strategies import cases

DTYPES = ("float32", "bfloat16", "float16")


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
    def declaration(self) -> Op:
        return OPS[self.op]

    @property
    def check(self) -> Law:
        return LAWS[self.law]


@dataclass(frozen=True)
class Selection:
    """Which jobs are wanted; an empty tuple means all."""

    ops: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def jobs(self) -> list[Job]:
        """The jobs that exist and are wanted, in the order of the catalogue.

        Raises:
            ValueError: a name that is unknown, or names that no job has together.
        """
        known = {
            "op": (self.ops, tuple(OPS)),
            "mode": (self.modes, tuple({m.name: 0 for op in OPS.values() for m in op.modes})),
            "law": (self.laws, tuple(LAWS)),
            "dtype": (self.dtypes, DTYPES),
        }
        for what, (wanted, names) in known.items():
            for name in wanted:
                if name not in names:
                    raise ValueError(f"{what}: {name!r}, expected one of {', '.join(names)}")
        chosen = list(self._jobs())
        if not chosen:
            raise ValueError(f"no job has {self}, expected a mode and a law of the op")
        return chosen

    def _jobs(self) -> Iterator[Job]:
        for op in OPS.values():
            for mode in op.modes:
                for law in op.laws:
                    for dtype in DTYPES:
                        job = Job(op.name, mode.name, law, dtype)
                        if (
                            _wanted(op.name, self.ops)
                            and _wanted(mode.name, self.modes)
                            and _wanted(law, self.laws)
                            and _wanted(dtype, self.dtypes)
                        ):
                            yield job


def _wanted(name: str, names: Sequence[str]) -> bool:
    return not names or name in names


def _ignore(*_: object) -> None:
    return None


def hypothesis_test(
    job: Job,
    subject: Subject,
    observe: Callable[[Case, float], None] = _ignore,
    announce: Callable[[Case], None] = _ignore,
) -> Callable[[], None]:
    """The job as a Hypothesis test.

    pytest and the fuzzer run the same function under the same name, so what one of them finds lies
    in Hypothesis' database for the other.

    Args:
        observe: told each case that passed, and its worst error as a fraction of the budget.
        announce: told each case before it runs.
    """
    op, law = job.declaration, job.check

    def test(case: Case) -> None:
        announce(case)
        ratio = law(op, case, subject)
        if ratio > 0:
            target(ratio, label="error / budget")
        observe(case, ratio)

    test.__name__ = test.__qualname__ = job.name.replace("-", "_")
    drawn = cases(op, op.mode(job.mode), job.dtype, subject.target)
    wrapped: Callable[[], None] = given(drawn)(test)
    return wrapped
