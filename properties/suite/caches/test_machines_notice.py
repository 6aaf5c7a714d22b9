"""The machines of caches: they notice planted bugs."""

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
    # The simulator sees some of them first, a race or a read of what nobody wrote; and tensors of
    # other lengths do not compare.
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
