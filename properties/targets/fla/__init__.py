"""The kernels of flash-linear-attention (fla-core)."""

import torch

from properties import simulator
from properties.targets.adapter import Adapter
from properties.targets.fla.implementations import implementations


def target(device: torch.device) -> Adapter:
    # Several kernels load whole tiles of which only the lower half has been written, and drop the
    # rest. Read as NaN, it shows where it is not dropped.
    if simulator.installed():
        simulator.install(unwritten="nan")
    return Adapter(implementations())
