"""Whose kernels are under test."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

import torch

from properties.case import Case
from properties.catalogue.op import Function, Op


class Target(Protocol):
    """An implementation of the catalogue."""

    name: str

    def function(self, op: Op) -> Function:
        """The op, callable as the oracle is, with `mode` and `tile` besides."""

    def tiles(self, case: Case) -> Mapping[int, int]:
        """Entries of the tile table that admit the case's dims and dtype → tokens per tile."""


def load(name: str, device: torch.device) -> Target:
    """The target of this name, for kernels on `device`: "ours", or "oracle" for the oracles.

    Raises:
        ValueError: there is none.
    """
    if name not in ("ours", "oracle"):
        raise ValueError(f"target: {name!r}, expected 'ours' or 'oracle'")
    # Imported here, as kernels must not be before a device is activated, nor with an oracle alone.
    target: Target = import_module(f"properties.targets.{name}").target(device)
    return target
