"""Tests of the device that kernels run on."""

import pytest
import torch

from properties.device import gpus


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("4,GPU-5,6", ["4", "GPU-5", "6"]),
        # PyTorch counts three.
        ("4,5,6,-1,7", ["4", "5", "6"]),
    ],
)
def test_gpus_are_named_as_this_process_sees_them(
    chosen: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert gpus() == expected
    assert gpus("simulator") == []
