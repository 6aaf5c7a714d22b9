"""A call where nothing runs kernels."""

import pytest
import torch
from triton.runtime import driver

import kernels


def test_a_call_without_a_gpu_names_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(type(driver), "active", property(lambda self: refuse()))
    with pytest.raises(RuntimeError, match="expected a GPU and tensors on it, or a simulated one"):
        kernels.l2norm(torch.ones(1, 2, 3, 4))
