"""Every law holds for every op, mode and dtype: one item each.

In a run of all of them some rest and are deselected, see `Job.share`.
"""

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import seed, settings

from properties.cases.case import Case
from properties.jobs import Job, examples_of, hypothesis_test, raised
from properties.laws import Subject, Violation
from properties.laws.fingerprint import Fingerprint
from properties.session import RUN, SHARE_FACTORS, selection, target_of
from properties.suite.limit import limited
from properties.verdict.excess import Excess

T = TypeVar("T")
Worst = dict[Fingerprint, tuple[Excess, Violation]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    jobs = selection(metafunc.config).jobs(target_of(metafunc.config))
    metafunc.parametrize("job", jobs, ids=[job.name for job in jobs])


def test_law_holds(job: Job, subject: Subject, pytestconfig: pytest.Config) -> None:
    subject.ledger.excused.clear()
    factor = pytestconfig.stash[SHARE_FACTORS][job.op]
    examples = examples_of(job, subject.target, settings().max_examples, factor)
    tried: deque[Case] = deque(maxlen=1)

    def announce(case: Case) -> None:
        tried.append(case)
        begin(case)

    def recall(about: tuple[Any, ...], compute: Callable[[], T]) -> T:
        # The limit is the target's: hundreds of runs of an oracle take longer.
        begin(None)
        try:
            return compute()
        finally:
            begin(tried[-1])

    worst: Worst = {}

    def note(failed: Violation) -> None:
        known = worst.get(failed.fingerprint)
        if failed.excess and (known is None or failed.excess > known[0]):
            worst[failed.fingerprint] = failed.excess, failed

    test = hypothesis_test(job, replace(subject, recall=recall), announce=announce, note=note)
    if not settings().derandomize and pytestconfig.getoption("--hypothesis-seed") is None:
        test = seed(f"{RUN} {job.seed_key}")(test)
    try:
        with limited(pytestconfig) as begin:
            settings(max_examples=examples)(test)()
    except Violation as violation:
        raise _report(_with_the_worst(violation, worst)) from violation.__cause__
    except ExceptionGroup as several:
        for one in several.exceptions:
            if isinstance(one, Violation):
                _report(_with_the_worst(one, worst))
        raise several.with_traceback(None) from None
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        # The target raised it. A skip would pass.
        raise _report(raised(job.law, tried[-1], subject, error)) from None
    for name, count in subject.ledger.excused.items():
        warnings.warn(f"{count} examples failed with {name}, which is known", stacklevel=1)


def _with_the_worst(violation: Violation, worst: Worst) -> Violation:
    """Say in a report which case was furthest off.

    Hypothesis shows the smallest case of each result alone: a rounding there hides a wrong mask.
    """
    excess, grave = worst.get(violation.fingerprint, (None, violation))
    if excess and violation.excess and excess > violation.excess:
        told = excess.told(violation.fingerprint.output)
        repro = str(grave).rpartition("\n")[2]
        violation.add_note(f"  at worst  {told}: {grave.case.line()}\n{repro}")
    return violation


def _report(violation: Violation) -> Violation:
    """The report alone, which names the frames of the target's own code.

    pytest would print those of this suite and of Triton before it. Only if there are no others
    may the error be this suite's.
    """
    if "\n  at  " in str(violation):
        violation.__cause__ = None
    return violation.with_traceback(None)
