"""The kernels of flash-linear-attention (fla-core)."""

import torch

from properties import simulator
from properties.targets.adapter import Adapter
from properties.targets.fla.implementations import implementations


def target(device: torch.device) -> Adapter:
    # Several kernels load whole tiles of which only the lower half was written, and drop the rest.
    # With NaN there, a rest that is not dropped shows.
    if simulator.installed():
        simulator.install(unwritten="nan")
    return Adapter(implementations())
