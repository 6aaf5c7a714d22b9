"""Every law of every op, in every mode and dtype: one item each."""

import warnings

import pytest
from hypothesis import settings

from properties.device import activate
from properties.jobs import Job, Selection, hypothesis_test
from properties.laws import Subject
from properties.targets import load

# Laws about numbers get all examples of the profile. The others compare an implementation with
# itself, where one case says more of the next, and get half.
_OF_NUMBERS = ("differential", "exactness", "splitting")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    names = (tuple(option(name)) for name in ("op", "mode", "law", "dtype"))
    try:
        target = load(option("target"), activate(option("device")))
        jobs = Selection(*names).jobs(target)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("job", jobs, ids=[job.name for job in jobs])


def test_law_holds(job: Job, subject: Subject) -> None:
    subject.ledger.excused.clear()
    examples = settings().max_examples
    if job.law not in _OF_NUMBERS:
        examples = (examples + 1) // 2
    settings(max_examples=examples)(hypothesis_test(job, subject))()
    for name, count in subject.ledger.excused.items():
        warnings.warn(f"{count} examples failed with {name}, which is known", stacklevel=1)
