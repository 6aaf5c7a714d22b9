"""Jobs: who draws the same cases."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings

from properties.case import Case
from properties.jobs import Job, hypothesis_test
from properties.laws import LAWS, Law, Subject
from properties.targets.oracle import Oracle


def _drawn(job: Job) -> list[Case]:
    cases: list[Case] = []
    subject = Subject(Oracle(), torch.device("cpu"))
    test = settings(max_examples=5, derandomize=True)(
        hypothesis_test(job, subject, announce=cases.append)
    )
    test()
    return cases


@pytest.fixture(autouse=True)
def nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAWS:
        monkeypatch.setitem(LAWS, name, Law(name, lambda op, case, subject: 0.0))


def _gla(laws: Sequence[str]) -> list[Job]:
    return [Job("gla", "chunk", law, dtype) for law in laws for dtype in ("float32", "bfloat16")]


def test_each_job_about_numbers_draws_cases_of_its_own_and_the_same_ones_again() -> None:
    jobs = _gla(["differential", "splitting", "packing"])
    drawn = [_drawn(job) for job in jobs]
    assert len({tuple((case.seed, case.lengths) for case in cases) for cases in drawn}) == len(jobs)
    assert _drawn(jobs[0]) == drawn[0]


def test_other_laws_say_something_of_the_same_cases() -> None:
    jobs = _gla(["packing", "determinism"])
    assert [_drawn(job) for job in jobs[:2]] == [_drawn(job) for job in jobs[2:]]


def test_jobs_can_be_made_before_the_kernels_are_imported() -> None:
    code = "import sys, properties.jobs; sys.exit('kernels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
