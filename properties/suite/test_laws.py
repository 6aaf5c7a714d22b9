"""Every law holds for every op, mode and dtype: one item each.

In a run of all of them some rest and are deselected, see `Job.share`.
"""

import warnings

import pytest
from hypothesis import settings

from properties.device import activate
from properties.jobs import Job, Selection, examples, hypothesis_test
from properties.laws import Subject, Violation
from properties.session import TIMES_ITS_SHARE
from properties.targets import load


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    names = (tuple(option(f"oracles_{name}")) for name in ("op", "mode", "law", "dtype"))
    try:
        target = load(option("oracles_target"), activate(option("oracles_device")))
        jobs = Selection(*names).jobs(target)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("job", jobs, ids=[job.name for job in jobs])


def test_law_holds(job: Job, subject: Subject, pytestconfig: pytest.Config) -> None:
    subject.ledger.excused.clear()
    share = pytestconfig.stash[TIMES_ITS_SHARE]
    most = examples(job, subject.target, settings().max_examples, share)
    try:
        settings(max_examples=most)(hypothesis_test(job, subject))()
    except Violation as violation:
        # The report says all; pytest would print the frames of this suite before it.
        raise violation.with_traceback(None) from violation.__cause__
    except ExceptionGroup as several:
        raise _as_reports(several) from None
    for name, count in subject.ledger.excused.items():
        warnings.warn(f"{count} examples failed with {name}, which is known", stacklevel=1)


def _as_reports(several: ExceptionGroup[Exception]) -> ExceptionGroup[Exception]:
    """Distinct failures without frames, whose reports name those of the kernel's own code."""
    for one in several.exceptions:
        if isinstance(one, Violation):
            one.with_traceback(None).__cause__ = None
    return several.with_traceback(None)
