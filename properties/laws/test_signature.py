"""Failures that are one bug, and failures that are two."""

import pytest
import torch
from hypothesis import Phase, settings

from properties.case import Case
from properties.fuzz.planted import outside, raising, twofold
from properties.jobs import Job, hypothesis_test, judge
from properties.laws import Subject, Violation
from properties.laws.signature import Signature, signature

CPU = torch.device("cpu")
CASE = Case(op="l2norm", mode="fused", dtype="float32", dims={"B": 1, "H": 1, "D": 3}, lengths=(2,))


def test_hypothesis_sees_two_bugs_of_one_kernel() -> None:
    job = Job("l2norm", "fused", "differential", "float32")
    phases = (Phase.generate, Phase.shrink)
    test = hypothesis_test(job, Subject(twofold(CPU), CPU))
    with pytest.raises(ExceptionGroup) as group:
        settings(max_examples=60, database=None, derandomize=True, deadline=None, phases=phases)(
            test
        )()
    found = [one for one in group.value.exceptions if isinstance(one, Violation)]
    assert len(found) == len(group.value.exceptions)
    assert {violation.signature.error for violation in found} == {"ArithmeticError", ""}
    # Each has been made smaller by itself.
    assert sorted(violation.case.dims["D"] for violation in found) == [2, 7]


def test_an_address_has_the_line_of_its_kernel() -> None:
    from properties.device import activate

    activate("simulator")
    seen = set()
    for law in ("differential", "determinism"):
        with pytest.raises(Violation) as failed:
            judge(law, CASE, Subject(outside(CPU), CPU))
        seen.add(failed.value.signature.bug)
        assert failed.value.signature.error == "LoadOutOfBounds"
    (place,) = seen
    assert str(place).startswith("properties/fuzz/planted.py:")


def test_an_error_is_told_with_the_last_lines_of_the_targets_own_code() -> None:
    with pytest.raises(Violation) as failed:
        judge("differential", CASE, Subject(raising(CPU), CPU))
    lines = str(failed.value).splitlines()
    assert lines[0] == "differential: ValueError: head dim 7 is not supported"
    assert [line.split(" in ")[-1] for line in lines if line.startswith("  at ")] == ["l2norm"] * 2
    assert 'raise ValueError("head dim 7 is not supported")' in lines[5]


def test_sentences_that_differ_in_numbers_are_one_bug() -> None:
    told = "eps=-1e-06 was accepted", "eps=0.0 was accepted"
    first, second = (signature("l2norm", "rejection", sentence) for sentence in told)
    assert first == second == Signature("norm", "rejection", "eps=# was accepted")
