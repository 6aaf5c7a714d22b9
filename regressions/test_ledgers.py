"""Known failures of other people's kernels: each fails as its ledger says, or the entry goes.

An entry that passes is fixed upstream, and is deleted. Only entries that cannot run are skipped: a
target or release that is not installed, a failure of another device.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from properties import scope, simulator
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Function, Op
from properties.device import activate
from properties.laws import LAWS, Subject, Violation
from properties.suite.test_ledger import beside, trouble
from properties.targets import Target, load
from properties.targets.ledger import KnownFailure, Ledger, Symptom, Wrong, read

FOLDER = Path(__file__).parent / "targets"
TARGETS = sorted(path.parent.name for path in FOLDER.glob("*/ledger.py"))
ENTRIES = [(target, entry) for target in TARGETS for entry in read("auto", target, None).entries]
EACH = pytest.mark.parametrize(
    ("target", "entry"),
    [pytest.param(target, entry, id=f"{target}-{entry.name}") for target, entry in ENTRIES],
)
# An entry without a case has a script alone: the adapter keeps clear of it.
EACH_CASE = pytest.mark.parametrize(
    ("target", "entry", "case"),
    [
        pytest.param(target, entry, case, id=f"{target}-{entry.name}-{case.op}")
        for target, entry in ENTRIES
        for case in entry.cases
    ],
)
LINES = 20
# Targets → the packages that have their kernels.
PACKAGES = {
    "fla": "fla-core ",
    "sglang": "sglang ",
    "torch": "torch ",
    "transformers": "transformers ",
    "vllm": "vllm ",
}

Bug = Callable[[Op, Function], Function]


def subject_of(target: str, entry: KnownFailure, request: pytest.FixtureRequest) -> Subject:
    """The target with this one entry, on the device and in the release that has the failure."""
    device = activate(request.config.getoption("oracles_device"))
    if device.type not in entry.devices:
        pytest.skip(f"shows on {' and '.join(entry.devices)}")
    try:
        found = load(target, device)
    except ValueError as error:
        pytest.skip(str(error))
    if not any(found.modes(op) for op in OPS.values()):
        pytest.skip(f"target {target} is not installed")
    if not entry.installed:
        pytest.skip(f"is about {' and '.join(entry.releases)}, which is not installed")
    return Subject(found, device, known(target, entry))


def known(target: str, entry: KnownFailure) -> Ledger:
    """The entry alone, or with those that its cases cannot do without."""
    return beside(entry, tuple(one for name, one in ENTRIES if name == target))


@EACH_CASE
def test_known_failure_still_fails(
    target: str, entry: KnownFailure, case: Case, request: pytest.FixtureRequest
) -> None:
    found = trouble(entry, case, subject_of(target, entry, request))
    assert found is None, found


class Planted(Target):
    """A target with one more bug."""

    def __init__(self, target: Target, bug: Bug) -> None:
        self.target, self.bug, self.bitwise = target, bug, target.bitwise
        self.documented_errors = target.documented_errors

    def declaration(self, op: Op, mode: str) -> Op:
        return self.target.declaration(op, mode)

    def function(self, op: Op) -> Function:
        return self.bug(op, self.target.function(op))


def raising(op: Op, right: Function) -> Function:
    def wrong(**given: Any) -> Any:
        raise RuntimeError("planted")

    return wrong


def accepting(op: Op, right: Function) -> Function:
    """Zeros where the library raises an exception."""

    def wrong(**given: Any) -> Any:
        try:
            return right(**given)
        except Exception:
            zeros = tuple(torch.zeros(1) for _ in op.outputs)
            return zeros if len(zeros) > 1 else zeros[0]

    return wrong


def is_nan(output: str) -> Bug:
    """The first element of an output is NaN."""

    def bug(op: Op, right: Function) -> Function:
        def wrong(**given: Any) -> tuple[Tensor | None, ...]:
            returned = right(**given)
            outputs = returned if isinstance(returned, tuple) else (returned,)
            return tuple(
                y if y is None or o.name != output or not y.numel() else y + _nan_at_first(y)
                for o, y in zip(op.outputs, outputs, strict=True)
            )

        return wrong

    return bug


def _nan_at_first(y: Tensor) -> Tensor:
    nan = torch.zeros_like(y)
    nan.view(-1)[0] = torch.nan
    return nan


def reported(entry: KnownFailure, case: Case, subject: Subject, bug: Bug) -> bool:
    """Whether a bug that is not the entry's is reported where its case shows the entry's."""
    op = scope.declared(subject.target, case.op, case.mode)
    ledger = Ledger(subject.ledger.entries)
    planted = replace(subject, target=Planted(subject.target, bug), ledger=ledger)
    try:
        LAWS[entry.law](op, case, planted)
    except Exception as error:
        return isinstance(error, Violation) or not planted.ledger.excuses(error)
    return False


@EACH_CASE
def test_known_failure_excuses_no_other(
    target: str, entry: KnownFailure, case: Case, request: pytest.FixtureRequest
) -> None:
    subject = subject_of(target, entry, request)
    if entry.law == "rejection":
        assert reported(entry, case, subject, accepting)
        return
    assert reported(entry, case, subject, raising)
    for output in scope.declared(subject.target, case.op, case.mode).outputs:
        asked = output.asked_by is None or case.options.get(output.asked_by)
        if asked and not any(_may_hide_nan(symptom, output.name) for symptom in entry.symptoms):
            assert reported(entry, case, subject, is_nan(output.name)), output.name


def _may_hide_nan(symptom: Symptom, output: str) -> bool:
    """Whether NaN in an output is excused, or an exception comes before it is looked at."""
    if isinstance(symptom, Wrong):
        return not symptom.finite and (symptom.results is None or output in symptom.results)
    return True


@EACH_CASE
def test_known_failure_looks_at_empty_tensors(
    target: str, entry: KnownFailure, case: Case, request: pytest.FixtureRequest
) -> None:
    """An entry's predicates read the arguments of every call, those without tokens too."""
    subject = subject_of(target, entry, request)
    op = scope.declared(subject.target, case.op, case.mode)
    nothing = tuple(0 for _ in case.lengths)
    no_keys = nothing if op.own_keys else case.key_lengths
    for empty in (
        replace(case, lengths=nothing, key_lengths=None),
        replace(case, key_lengths=no_keys),
        case.with_dims(B=1 if case.packed else 0),
    ):
        given = {"mode": case.mode, **subject.inputs(op, op.settle(empty)).given()}
        assert entry.shows(given) in (True, False)
        for symptom in entry.symptoms:
            symptom.of(given)


@EACH
def test_script_shows_it_with_the_library_alone(
    target: str, entry: KnownFailure, request: pytest.FixtureRequest
) -> None:
    subject_of(target, entry, request)
    script = FOLDER / target / f"{entry.name}.py"
    assert len(script.read_text().splitlines()) <= LINES
    # From another folder, and without this project on the path; Triton needs it on a CPU.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ("-m", "properties.simulator", "--unwritten", "nan", "--index-bits")
    triton = (*command, str(entry.index_bits)) if simulator.installed() else ()
    ran = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", *triton, script],
        capture_output=True,
        text=True,
        cwd="/",
        env=environment,
    )
    said = ran.stdout.splitlines()
    assert said == [f"expected {entry.expected}", f"got {entry.got}"], ran.stderr


@EACH
def test_every_entry_names_its_releases(target: str, entry: KnownFailure) -> None:
    assert entry.releases
    assert all(
        re.fullmatch(r"[a-z-]+ \d+(\.\d+)+(\.post\d+)?", release) for release in entry.releases
    )
    assert any(release.startswith(PACKAGES[target]) for release in entry.releases)


@pytest.mark.parametrize("target", TARGETS)
def test_every_script_is_of_an_entry(target: str) -> None:
    scripts = {path.stem for path in (FOLDER / target).glob("*.py")}
    names = [entry.name for entry in read("auto", target, None).entries]
    assert scripts - {"ledger"} == set(names)
    assert len(names) == len(set(names))
