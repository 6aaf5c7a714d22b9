"""Failures of one bug share a fingerprint; failures of two bugs do not."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.internal.entropy
import pytest
import torch
from hypothesis import Phase, settings

from properties.cases.case import Case
from properties.catalogue import OPS
from properties.fuzz import planted
from properties.fuzz.answer import Origin
from properties.fuzz.planted import outside, raising, turning, twofold
from properties.fuzz.worker import Worker
from properties.jobs import Job, hypothesis_test, judge
from properties.laws import Subject, Violation
from properties.laws.fingerprint import Fingerprint, fingerprint, is_own, short
from properties.simulator import runtime
from properties.targets import Adapter

CPU = torch.device("cpu")
CASE = Case(op="l2norm", mode="fused", dtype="float32", dims={"B": 1, "H": 1, "D": 3}, lengths=(2,))


def test_hypothesis_sees_two_bugs_of_one_kernel() -> None:
    job = Job("l2norm", "fused", "differential", "float32")
    phases = (Phase.generate, Phase.shrink)
    test = hypothesis_test(job, Subject(twofold(CPU), CPU))
    with pytest.raises(ExceptionGroup) as group:
        settings(
            max_examples=60,
            database=None,
            derandomize=True,
            deadline=None,
            phases=phases,
            report_multiple_bugs=True,
        )(test)()
    found = [one for one in group.value.exceptions if isinstance(one, Violation)]
    assert len(found) == len(group.value.exceptions)
    assert {violation.fingerprint.error for violation in found} == {"ArithmeticError", ""}
    # Each was shrunk by itself.
    assert {violation.case.dims["D"] for violation in found} == {2, 7}


def test_an_address_has_the_line_of_its_kernel() -> None:
    from properties.device import activate

    activate("simulator")
    seen = set()
    for law in ("differential", "determinism"):
        with pytest.raises(Violation) as failed:
            judge(law, CASE, Subject(outside(CPU), CPU))
        seen.add(failed.value.fingerprint.bug)
        assert failed.value.fingerprint.error == "LoadOutOfBounds"
    (place,) = seen
    assert str(place).startswith("properties/fuzz/planted.py:")


def test_a_loop_that_the_simulator_ends_is_the_one_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from properties.device import activate

    # `turning` lowers it.
    monkeypatch.setattr(runtime, "LOOP_LIMIT", runtime.LOOP_LIMIT)
    activate("simulator")
    with pytest.raises(Violation) as failed:
        judge("differential", CASE, Subject(turning(CPU), CPU))
    origin = Origin(f"{planted.__name__}:endless", "simulator", "none")
    worker = Worker(origin, 0.2)
    try:
        hung = worker.ask("differential", CASE).failure
    finally:
        worker.close()
    assert hung is not None
    assert failed.value.fingerprint.bug == hung.fingerprint.bug
    assert hung.fingerprint.bug == "properties/fuzz/planted.py in l2norm"


def test_installed_libraries_are_not_the_targets_own() -> None:
    # Hypothesis collects garbage within any frame of a target.
    for library in (hypothesis.internal.entropy, torch.nn.functional):
        assert not is_own(str(library.__file__))
    assert is_own(planted.__file__)


def test_a_place_is_the_same_wherever_a_run_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert short(planted.__file__) == "properties/fuzz/planted.py"
    assert short(str(tmp_path / "kernel.py")) == "kernel.py"
    assert short("/nowhere/kernel.py") == "/nowhere/kernel.py"


def test_an_error_report_has_the_last_lines_of_the_targets_own_code() -> None:
    with pytest.raises(Violation) as failed:
        judge("differential", CASE, Subject(raising(CPU), CPU))
    lines = str(failed.value).splitlines()
    assert lines[0] == "differential: ValueError: head dim 7 is not supported"
    assert [line.split(" in ")[-1] for line in lines if line.startswith("  at ")] == ["l2norm"] * 2
    assert 'raise ValueError("head dim 7 is not supported")' in lines[5]


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return OPS["l2norm"].oracle(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy.to_sparse()


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda x: (x, x, x), "it returns 3 results, expected y alone"),
        (lambda x: (), "it returns no y, expected y"),
        (lambda x: x.to("meta"), "it returns y on meta, expected cpu"),
        (_Sparse.apply, "it returns dx as a tensor that is float32 sparse_coo, expected dense"),
    ],
)
def test_a_result_of_a_wrong_kind_is_named_and_no_line_of_the_suite_blamed(
    returned: Callable[[torch.Tensor], Any], told: str
) -> None:
    function: Any = returned

    def l2norm(x: torch.Tensor) -> Any:
        return function(x)

    with pytest.raises(Violation, match=re.escape(told)) as failed:
        judge("differential", CASE, Subject(Adapter({"l2norm": {"fused": l2norm}}), CPU))
    assert failed.value.fingerprint.place == ""
    assert "no line of the target's own code" in str(failed.value)


def test_messages_that_differ_in_numbers_are_one_bug() -> None:
    told = "eps=-1e-06 was accepted", "eps=0.0 was accepted"
    first, second = (fingerprint("l2norm", "rejection", sentence) for sentence in told)
    assert first == second == Fingerprint("norm", "rejection", "eps=# was accepted")


@pytest.mark.parametrize(
    ("law", "refused", "told"),
    [
        ("splitting", lambda given: given["q"].shape[1] != 7, r"\(q=float32\[1, [0-6], 2, 3\],"),
        ("scale_equivariance", lambda given: (given["scale"] or 1) < 0, " scale=-0"),
    ],
)
def test_a_report_shows_the_failed_call_if_a_law_changed_its_case(
    law: str, refused: Callable[[dict[str, Any]], bool], told: str
) -> None:
    def refusing(**given: Any) -> Any:
        if refused(given):
            raise ValueError("refused")
        return OPS["gla"].oracle(**given)

    case = Case(
        op="gla", mode="some", dtype="float32", dims={"B": 1, "H": 2, "K": 3, "V": 2},
        lengths=(7,), given=("g", "initial_state"), seed=4,
        options={"scale": None, "output_final_state": True, "normalize": False, "reverse": False},
    )  # fmt: skip
    with pytest.raises(Violation) as failed:
        judge(law, case, Subject(Adapter({"gla": {"some": refusing}}), CPU))
    (call,) = (line for line in str(failed.value).splitlines() if line.startswith("  call"))
    assert re.search(told, call)
    assert "'scale': None" in str(failed.value)
