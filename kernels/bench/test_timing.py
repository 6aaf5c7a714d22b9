"""Tests of timing, with a fake clock and a fake allocator."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.bench import timing
from kernels.bench.timing import Ceilings, Timing, ceilings, time_call


class Device:
    """Counts calls, and bytes that grow with each of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.allocated = self.peak = 1000
        cuda = {
            "synchronize": lambda: None,
            "reset_peak_memory_stats": self.reset,
            "memory_allocated": lambda: self.allocated,
            "max_memory_allocated": lambda: self.peak,
        }
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(timing, "do_bench", self.do_bench)

    def reset(self) -> None:
        self.peak = self.allocated

    def call(self) -> None:
        self.calls += 1
        # Compiling and tuning takes more.
        self.peak = max(self.peak, 1000 + (9000 if self.calls == 1 else 70))

    def do_bench(
        self, call: Callable[[], Any], rep: int, quantiles: list[float]
    ) -> tuple[float, ...]:
        assert self.calls == 2
        call()
        assert quantiles == [0.5, 0.2, 0.8]
        return 0.5 * rep, 0.2 * rep, 0.8 * rep


def test_a_call_is_timed_after_a_first_one_whose_memory_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(monkeypatch)
    assert time_call(device.call, 100) == Timing(median=50, low=20, high=80, peak=70)
    assert device.calls == 3


class _Cycle:
    """Holds memory until it is collected."""

    def __init__(self, device: Device) -> None:
        self.device, self.own = device, self
        device.allocated += 500

    def __del__(self) -> None:
        self.device.allocated -= 500


def test_what_a_first_call_left_behind_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)

    def call() -> None:
        if device.calls == 1:
            gc.collect()
        device.call()
        if device.calls == 1:
            _Cycle(device)

    gc.disable()
    try:
        assert time_call(call, 100).peak == 70
    finally:
        gc.enable()


def test_a_graph_is_timed_in_place_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    replays: list[None] = []
    monkeypatch.setattr(timing, "_replayed", lambda call: lambda: replays.append(None))
    time_call(device.call, 100, graph=True)
    assert (device.calls, len(replays)) == (2, 1)


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    roof = Ceilings(bandwidth=1e12, arithmetic=5e14)
    # 2 GB take 2 ms, as do 10^12 operations.
    assert roof.floor(2 * 10**9) == pytest.approx(2.0)
    assert roof.floor(2 * 10**9, 5 * 10**11) == pytest.approx(2.0)
    assert roof.floor(2 * 10**9, 2 * 10**12) == pytest.approx(4.0)


def test_ceilings_count_bytes_read_and_written_and_products_and_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "_COPIED", 1000)
    monkeypatch.setattr(timing, "_SIDE", 4)
    calls: list[Any] = []

    def timed(call: Callable[[], Any]) -> Timing:
        calls.append(call())
        return Timing(median=2.0, low=0, high=0, peak=0)

    monkeypatch.setattr(timing, "time_call", timed)
    # 2000 bytes, and 2 · 4³ operations, in 2 ms.
    assert ceilings(torch.device("cpu")) == Ceilings(bandwidth=1e6, arithmetic=64e3)
    copied, product = calls
    assert copied.shape == (1000,)
    assert product.shape == (4, 4)
