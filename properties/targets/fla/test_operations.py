"""The table of `fla.ops` says which operations run."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from properties import simulator
from properties.device import activate
from properties.targets.fla import operations, target
from properties.targets.fla.__main__ import TABLE
from properties.targets.fla.table import support

RECORDED = TABLE.read_text().splitlines()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "call" in metafunc.fixturenames:
        calls, _ = operations.public()
        metafunc.parametrize("call", calls, ids=[call.function for call in calls])


@pytest.fixture(scope="module")
def device(pytestconfig: pytest.Config) -> Iterator[torch.device]:
    name = pytestconfig.getoption("oracles_device")
    here = activate(name)
    target(here)
    yield here
    activate(name)


def test_an_operation_runs_as_recorded(call: operations.Call, device: torch.device) -> None:
    found = support(call, device)
    if simulator.installed():
        assert found.line() in RECORDED
        return
    # The table is the simulator's, which is stricter than a GPU. Only backward passes that fla
    # refuses on Hopper, under Triton releases that miscompile them, run in the simulator alone.
    if any("Hopper" in remark for remark in found.remarks):
        found = replace(found, backward="runs")
    (recorded,) = [line for line in RECORDED if line.startswith(found.heading())]
    pairs = zip(found.line().split("|"), recorded.split("|"), strict=True)
    assert not [theirs for ours, theirs in pairs if theirs == " runs " != ours]


def test_every_recorded_operation_is_there() -> None:
    calls, broken = operations.public()
    assert len(RECORDED) - RECORDED.index("|---" * 6 + "|") - 1 == len(calls) + len(broken)


def test_every_declared_operation_is_public() -> None:
    calls, _ = operations.public()
    assert {call.operation for call in calls} == set(operations.OPERATIONS)
