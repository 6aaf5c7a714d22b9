"""The cache machines notice planted bugs."""

from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from properties.simulator import SimulationError
from properties.suite.caches.machine import variant
from properties.suite.caches.planted import PLANTED


@pytest.mark.parametrize(
    ("machine", "planted"),
    [(machine, bug) for machine, bugs in PLANTED.items() for bug in bugs],
    ids=lambda x: x.__name__,
)
def test_a_planted_bug_is_caught(
    machine: type[Any], planted: type[Any], device: torch.device
) -> None:
    # The simulator sees some bugs first, as a race or an uninitialised read; tensors of different
    # lengths raise when compared.
    with pytest.raises((AssertionError, ValueError, RuntimeError, SimulationError)):
        run_state_machine_as_test(
            variant(machine, device, kind=planted),
            settings=settings(
                max_examples=200,
                stateful_step_count=20,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )
