"""Rows that tests show and write, and a pretended GPU."""

from importlib.util import find_spec

import pytest
import torch

from kernels.bench import __main__ as command
from kernels.bench.groups import Row
from kernels.bench.timing import Ceilings, Timing

collect_ignore = [] if find_spec("fla") else ["test_fla.py"]


@pytest.fixture
def roof() -> Ceilings:
    """2.4 GB/s and 1.2 GFLOP/s: 30 queries take 0.5 µs by the one, 1 µs by the other."""
    return Ceilings(bandwidth=2.4e9, arithmetic=1.2e9)


@pytest.fixture
def timing() -> Timing:
    return Timing(median=0.25, low=0.125, high=0.5, peak=3 * 2**20)


@pytest.fixture
def rows(timing: Timing) -> list[Row]:
    """The results of two groups, one of which failed."""
    return [
        Row("gla", "2,3,5,4,6", "forward", "fla", "chunk", timing, {}, 0.05, 1234.5, 0.26),
        Row("gla", "2,3,5,4,6", "forward", "ours", "chunk", error="RuntimeError: out of\nmemory"),
        Row(
            "gla", "2,3,5,4,6", "forward+backward", "ours", "chunk",
            timing, {"fla": 0.5}, 0.125, 7.0, 123.45, 1.5,
        ),
    ]  # fmt: skip


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch, roof: Ceilings) -> None:
    """Pretend that there is a GPU, as far as the command asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(command, "ceilings", lambda device: roof)
    monkeypatch.setattr(command, "tune_briefly", lambda: None)
