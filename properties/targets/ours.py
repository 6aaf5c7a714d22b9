"""This project's kernels as a target."""

from collections.abc import Mapping, Sequence

import torch

import kernels
from kernels import tiles
from properties.architectures import ARCHITECTURES, Architecture
from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.cases.values import COTANGENTS
from properties.catalogue import OPS
from properties.catalogue.op import Function, Op
from properties.targets.target import Target

# A wrapper runs the kernels of another op.
MODES_WITH_KERNELS = tuple(
    (op.name, mode.name) for op in OPS.values() for mode in op.modes if op.wraps is None
)


class Ours(Target):
    """Our kernels on an architecture, which determines the tiles.

    Args:
        capability: of the device, times ten.
        claims: architectures that the device may report instead.
    """

    name = "ours"
    takes_auto = True
    contexts = tuple(CONTEXTS)
    cotangents = tuple(COTANGENTS)

    def __init__(self, capability: int, claims: Sequence[Architecture] = ()) -> None:
        self.capability = capability
        self.claims = claims

    def chooses_by_count(self, op: Op, case: Case) -> bool:
        entries = tiles.TABLE.get((op.wraps or op.name, case.mode), ())
        heads = case.dims.get("H", 1) * case.dims.get("G", 1) * case.dims.get("R", 1)
        together = tiles.count_states(case.sequences, heads, max(case.dims.values()), None)
        limits = [entry.max_states for entry in entries if entry.max_states is not None]
        return case.tile is None and any(heads <= limit < together for limit in limits)

    def function(self, op: Op) -> Function:
        found: Function = getattr(kernels, op.name)
        return found

    def tiles(self, case: Case) -> Mapping[int, int]:
        capability = self.capability
        if case.architecture is not None:
            capability = ARCHITECTURES[case.architecture].capability
        return _admitted(case, capability)

    def architectures(self, case: Case) -> tuple[str, ...]:
        """One architecture for each other set of tiles."""
        known = {tuple(_admitted(case, self.capability))}
        others = []
        for claimed in self.claims:
            admitted = tuple(_admitted(case, claimed.capability))
            if admitted not in known:
                known.add(admitted)
                others.append(claimed.name)
        return tuple(others)


def _admitted(case: Case, capability: int) -> dict[int, int]:
    """The table's entries for the case at this compute capability → tokens per tile."""
    widest = max((case.dims[d] for d in ("K", "V", "D") if d in case.dims), default=1)
    entries = tiles.TABLE.get((case.op, case.mode), ())
    return {
        index: entry.tokens
        for index, entry in enumerate(entries)
        if entry.admits(widest, case.torch_dtype, capability)
    }


def target(device: torch.device) -> Ours:
    claims = tuple(ARCHITECTURES.values()) if device.type == "cpu" else ()
    return Ours(tiles.architecture(device), claims)
