"""Every law of every op, in every mode and dtype: one item each."""

import pytest

from properties.jobs import Job, Selection, hypothesis_test
from properties.laws import Subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    names = (tuple(option(name)) for name in ("op", "mode", "law", "dtype"))
    try:
        jobs = Selection(*names).jobs()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("job", jobs, ids=[job.name for job in jobs])


def test_law_holds(job: Job, subject: Subject) -> None:
    hypothesis_test(job, subject)()
