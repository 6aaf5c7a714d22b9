"""The kernels of this project."""

from collections.abc import Mapping

import torch

import kernels
from kernels import tiles
from properties.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Function, Op
from properties.targets.target import Target

# A reading of another op runs the kernels of that.
MODES_WITH_KERNELS = tuple(
    (op.name, mode.name)
    for op in OPS.values()
    for mode in op.modes
    if (op.name, mode.name) in tiles.TABLE
)


class Ours(Target):
    """Our kernels as they are on an architecture, which has tiles of its own."""

    name = "ours"
    contexts = ("grad", "no_grad", "inference_mode", "autocast", "compiled")

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def function(self, op: Op) -> Function:
        found: Function = getattr(kernels, op.name)
        return found

    def tiles(self, case: Case) -> Mapping[int, int]:
        widest = max((case.dims[d] for d in ("K", "V", "D") if d in case.dims), default=1)
        entries = tiles.TABLE.get((case.op, case.mode), ())
        return {
            index: entry.tokens
            for index, entry in enumerate(entries)
            if entry.admits(widest, case.torch_dtype, arch=self.architecture)
        }


def target(device: torch.device) -> Ours:
    return Ours(tiles.architecture(device))
