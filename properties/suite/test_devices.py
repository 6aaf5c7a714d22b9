"""A kernel runs on the device of its tensors, which need not be the current one.

Triton launches on the current device. So each launch lies within `torch.cuda.device_of` a tensor of
its call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kernels.cache import PagedCache
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.device import recorded_launches
from properties.laws import Subject
from properties.targets.ours import MODES_WITH_KERNELS

_PACKED = [(*each, True) for each in MODES_WITH_KERNELS if OPS[each[0]].packed_by]


@contextmanager
def _expecting_guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expect that there are launches, each of them within `torch.cuda.device_of`."""
    guarded: list[str] = []
    with recorded_launches() as launched, monkeypatch.context() as patching:
        depth = 0

        @contextmanager
        def device_of(x: torch.Tensor) -> Iterator[None]:
            nonlocal depth
            before, depth = len(launched), depth + 1
            yield
            depth -= 1
            if not depth:
                guarded.extend(launched[before:])

        patching.setattr(torch.cuda, "device_of", device_of)
        yield
    assert launched, "nothing was launched"
    assert guarded == launched, "launched on the current device"


@pytest.mark.parametrize(
    ("name", "mode", "packed"), [*((*each, False) for each in MODES_WITH_KERNELS), *_PACKED]
)
def test_kernels_run_where_their_tensors_are(
    name: str, mode: str, packed: bool, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = OPS[name]
    sizes: dict[str, int] = dict.fromkeys(op.dims, 2) | {"G": 1, "D": 16, "P": 3}
    case = op.full(mode, sizes, (5, 3) if packed else (5,), packed=packed)
    for each in _in_place_too(case):
        inputs, cotangents = subject.inputs(op, each), subject.cotangents(op, each)
        with _expecting_guards(monkeypatch):
            subject.run(op, each, inputs, cotangents)


def _in_place_too(case: Case) -> Iterator[Case]:
    yield case
    if "inplace" in case.options:
        yield case.with_options(inplace=True)


def test_a_cache_runs_where_its_tensors_are(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PagedCache(1, 4, 2, 1, 4, 4, device=device)
    q = k = v = torch.ones(1, 3, 1, 4, device=device)
    calls: list[tuple[Any, ...]] = [(cache.update, k, v), (cache.attend, q, k, v)]
    for call, *tensors in calls:
        with _expecting_guards(monkeypatch):
            call(*tensors)
