"""The cache machines notice planted bugs."""

from typing import Any

import pytest
import torch

from properties.simulator import SimulationError
from properties.suite.caches.machine import search
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
    with pytest.raises((AssertionError, IndexError, ValueError, RuntimeError, SimulationError)):
        search(machine, device, planted)
