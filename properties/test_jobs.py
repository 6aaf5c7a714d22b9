"""Jobs: what one draws no other does."""

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


def test_each_job_draws_cases_of_its_own_and_the_same_ones_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("differential", "splitting"):
        monkeypatch.setitem(LAWS, name, Law(name, lambda op, case, subject: 0.0))
    jobs = [
        Job("simple_gla", "chunk", law, dtype)
        for law in ("differential", "splitting")
        for dtype in ("float32", "bfloat16")
    ]
    drawn = [_drawn(job) for job in jobs]
    assert len({tuple((case.seed, case.lengths) for case in cases) for cases in drawn}) == len(jobs)
    assert _drawn(jobs[0]) == drawn[0]
