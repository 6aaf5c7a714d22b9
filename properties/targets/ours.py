"""The kernels of this project."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

import kernels
from kernels import tiles
from properties.case import Case
from properties.catalogue.op import Function, Op


@dataclass(frozen=True)
class Ours:
    """Our kernels as they are on an architecture, which has tiles of its own."""

    architecture: int
    name: str = "ours"

    def function(self, op: Op) -> Function:
        found: Function = getattr(kernels, op.name)
        return found

    def tiles(self, case: Case) -> Mapping[int, int]:
        widest = max((case.dims[d] for d in ("K", "V", "D") if d in case.dims), default=1)
        entries = tiles.TABLE.get((case.op, case.mode), ())
        return {
            index: entry.tokens
            for index, entry in enumerate(entries)
            if entry.admits(widest, case.torch_dtype.itemsize, arch=self.architecture)
        }


def target(device: torch.device) -> Ours:
    return Ours(tiles.architecture(device))
