"""Every law of every op, in every mode and dtype: one item each."""

import warnings

import pytest
from hypothesis import settings

from kernels.tiles import TABLE
from properties.catalogue import DTYPES, OPS
from properties.device import activate
from properties.jobs import Job, Selection, hypothesis_test
from properties.laws import LAWS, Subject
from properties.targets import load


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
    if not job.of_numbers:
        examples = (examples + 1) // 2
    if subject.target.name == "ours" and not _in_turn(job):
        examples = 2
    settings(max_examples=examples)(hypothesis_test(job, subject))()
    for name, count in subject.ledger.excused.items():
        warnings.warn(f"{count} examples failed with {name}, which is known", stacklevel=1)


def _in_turn(job: Job) -> bool:
    """Whether a reading, which is the same lines in all its modes, is tried in this one in earnest.

    What differs from mode to mode is another op's, and judged there. Laws and dtypes take turns.
    """
    modes = [mode.name for mode in OPS[job.op].modes]
    turn = list(LAWS).index(job.law) + DTYPES.index(job.dtype)
    return (job.op, job.mode) in TABLE or job.mode == modes[turn % len(modes)]
