"""Known failures of other people's kernels: each fails as its ledger says, or the entry goes.

What passes again is fixed upstream, and its entry is deleted. Only what cannot run is skipped: a
target that is not installed, a failure of another device, a case that no adapter may draw.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from properties import simulator
from properties.catalogue import OPS
from properties.device import activate
from properties.laws import LAWS, Subject
from properties.targets import load, scope
from properties.targets.ledger import KnownFailure, read

FOLDER = Path(__file__).parent / "targets"
TARGETS = sorted(path.parent.name for path in FOLDER.glob("*/ledger.py"))
EACH = pytest.mark.parametrize(
    ("target", "entry"),
    [
        pytest.param(target, entry, id=f"{target}-{entry.name}")
        for target in TARGETS
        for entry in read("auto", target, None).entries
    ],
)
LINES = 20


def subject_of(target: str, entry: KnownFailure, request: pytest.FixtureRequest) -> Subject:
    """The target, with its ledger, on the device that the failure shows on."""
    device = activate(request.config.getoption("device"))
    if device.type not in entry.devices:
        pytest.skip(f"shows on {' and '.join(entry.devices)}")
    try:
        found = load(target, device)
    except ValueError as error:
        pytest.skip(str(error))
    if not any(found.modes(op) for op in OPS.values()):
        pytest.skip(f"target {target} is not installed")
    return Subject(found, device, read("auto", target, device.type))


@EACH
def test_known_failure_still_fails(
    target: str, entry: KnownFailure, request: pytest.FixtureRequest
) -> None:
    subject = subject_of(target, entry, request)
    assert entry.law in LAWS
    case = entry.case
    if case is None:
        pytest.skip("the adapter keeps clear of it; its script shows it")
    op = scope.declared(subject.target, case.op, case.mode)
    assert case.mode in entry.modes
    assert entry.law in scope.laws(subject.target, case.op, case.mode)
    try:
        LAWS[entry.law](op, case, subject)
    except Exception:
        assert entry.name in subject.ledger.met, f"{entry.name} is not told by its calls"
    else:
        pytest.fail(f"{entry.name} passes again: delete it from the ledger of {target}")


@EACH
def test_script_shows_it_with_the_library_alone(
    target: str, entry: KnownFailure, request: pytest.FixtureRequest
) -> None:
    subject_of(target, entry, request)
    script = FOLDER / target / f"{entry.name}.py"
    assert len(script.read_text().splitlines()) <= LINES
    # From another folder, and without this project on the path; Triton needs it on a CPU.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    triton = ("-m", "properties.simulator", "--unwritten", "nan") if simulator.installed() else ()
    ran = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", *triton, script],
        capture_output=True,
        text=True,
        cwd="/",
        env=environment,
    )
    said = ran.stdout.splitlines()
    assert said == [f"expected {entry.expected}", f"got {entry.got}"], ran.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_every_script_is_of_an_entry(target: str) -> None:
    scripts = {path.stem for path in (FOLDER / target).glob("*.py")}
    names = [entry.name for entry in read("auto", target, None).entries]
    assert scripts - {"ledger"} == set(names)
    assert len(names) == len(set(names))
