"""Each job draws the same cases in every run, and gets its share of the examples."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import settings

from properties.cases.case import Case
from properties.catalogue import DTYPES, OPS
from properties.jobs import EXAMPLES_OF_CI, Job, hypothesis_test, share_factor
from properties.laws import LAWS, Law, Subject
from properties.profiles import EXAMPLES
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
        monkeypatch.setitem(LAWS, name, Law(name, lambda run: 0.0))


def _gla(laws: Sequence[str]) -> list[Job]:
    return [Job("gla", "chunk", law, dtype) for law in laws for dtype in ("float32", "bfloat16")]


def test_laws_about_numbers_judge_the_same_cases_of_a_dtype_and_the_same_ones_again() -> None:
    jobs = _gla(["differential", "splitting"])
    one, other, *same = ([(case.seed, case.lengths) for case in _drawn(job)] for job in jobs)
    assert one != other
    assert same == [one, other]
    assert _drawn(jobs[0]) == _drawn(jobs[0])


def test_other_laws_say_something_of_the_same_cases() -> None:
    jobs = _gla(["packing", "determinism"])
    assert [_drawn(job) for job in jobs[:2]] == [_drawn(job) for job in jobs[2:]]


def _every() -> list[Job]:
    return [
        Job(op.name, mode.name, law, dtype)
        for op in OPS.values()
        for mode in op.modes
        for law in op.laws
        for dtype in op.dtypes
    ]


def _examples(jobs: Sequence[Job]) -> dict[str, int]:
    return {job.name: job.share(EXAMPLES) for job in jobs}


def test_all_jobs_together_get_the_examples_of_ci() -> None:
    found = _examples(_every()).values()
    assert abs(sum(found) - EXAMPLES_OF_CI) < 0.02 * EXAMPLES_OF_CI


def test_each_law_of_a_mode_has_examples_in_some_dtype_and_laws_about_numbers_in_all() -> None:
    found = _examples(_every())
    for op in OPS.values():
        for mode in op.modes:
            for law in op.laws:
                jobs = [Job(op.name, mode.name, law, dtype) for dtype in op.dtypes]
                tried = [job for job in jobs if found[job.name]]
                about_numbers = law in ("differential", "exactness")
                assert len(tried) == (len(jobs) if about_numbers else 1), jobs[0]


def test_each_law_of_several_ops_is_tried_in_every_dtype() -> None:
    found = _examples(_every())
    for law in {law for op in OPS.values() for law in op.laws}:
        tried = [job for job in _every() if job.law == law and found[job.name]]
        assert len(tried) < 3 or {job.dtype for job in tried} == {*DTYPES}, law


def test_no_job_rests_in_a_run_of_one_op() -> None:
    jobs = [job for job in _every() if job.op == "gla"]
    assert all(job.share(EXAMPLES, share_factor(jobs, EXAMPLES)) for job in jobs)


def test_an_op_more_takes_little_from_each(monkeypatch: pytest.MonkeyPatch) -> None:
    today = _every()
    before = _examples(today)
    gla = OPS["gla"]
    monkeypatch.setitem(OPS, "twin", replace(gla, name="twin"))
    after = _examples(today)
    assert 0.85 * sum(before.values()) < sum(after.values()) < sum(before.values())
    assert all(before[name] * 0.85 - 1 < after[name] for name in before)


def test_a_run_of_few_jobs_draws_more_for_each() -> None:
    everything = _every()
    assert share_factor(everything, EXAMPLES) == 1
    assert share_factor([job for job in everything if job.op == "mla"], EXAMPLES) == 24
    part = everything[::10]
    assert 1.5 < share_factor(part, EXAMPLES) < 24
    drawn = sum(job.share(EXAMPLES, share_factor(part, EXAMPLES)) for job in part)
    assert drawn == pytest.approx(1000, rel=0.05)


def test_jobs_can_be_made_before_the_kernels_are_imported() -> None:
    code = "import sys, properties.jobs; sys.exit('kernels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
