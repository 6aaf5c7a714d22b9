"""The kernels of flash-linear-attention (fla-core)."""

import sys
from contextlib import suppress

import torch

from properties import simulator
from properties.targets.adapter import Adapter
from properties.targets.fla.implementations import implementations
from properties.targets.fla.library import allow_constants_of_earlier_tritons, kernel


def target(device: torch.device) -> Adapter:
    allow_constants_of_earlier_tritons()
    # Several kernels load whole tiles of which only the lower half was written, and drop the rest.
    # With NaN there, a rest that is not dropped shows.
    if simulator.installed():
        simulator.install(unwritten="nan")
        _run_what_hopper_miscompiles()
    ops, remarks = implementations()
    return Adapter(ops, triton=True, remarks=remarks)


def _run_what_hopper_miscompiles() -> None:
    """Have fla run backward passes that it refuses on Hopper under some releases of Triton.

    The simulator reports Hopper, and compiles them as they are written.
    """
    with suppress(ImportError):
        kernel("fla.ops.simple_gla:chunk_simple_gla")
    module = sys.modules.get("fla.ops.common.chunk_o")
    if module is not None and hasattr(module, "IS_NVIDIA_HOPPER"):
        vars(module)["IS_NVIDIA_HOPPER"] = False
