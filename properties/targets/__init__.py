"""Whose kernels are under test."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from properties.case import Case
from properties.catalogue.op import Function, Op


class Target(Protocol):
    """An implementation of the catalogue."""

    name: str

    def function(self, op: Op) -> Function:
        """The op, callable as the oracle is, with `mode` and `tile` besides."""

    def tiles(self, case: Case) -> Mapping[int, int]:
        """Entries of the tile table that admit the case's dims and dtype → tokens per tile."""


class _NoTarget:
    """Nobody's kernels: cases for the oracles alone."""

    name = "none"

    def function(self, op: Op) -> Function:
        raise ValueError(f"target: 'none' has no {op.name}, expected a target with kernels")

    def tiles(self, case: Case) -> Mapping[int, int]:
        return {}


NONE = _NoTarget()


def load(name: str) -> Target:
    """The target of this name.

    Raises:
        ValueError: there is none.
    """
    if name != "ours":
        raise ValueError(f"target: {name!r}, expected 'ours'")
    target: Target = import_module("properties.targets.ours").OURS
    return target
