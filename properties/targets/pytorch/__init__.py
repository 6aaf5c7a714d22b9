"""PyTorch's own attention, in the installed release."""

import torch

from properties.targets.adapter import Adapter
from properties.targets.pytorch import flex, packed, sdpa

_KINDS = (sdpa, packed, flex)


def target(device: torch.device) -> Adapter:
    cuda = device.type == "cuda"
    modes = (kind.on_cuda() if cuda else kind.on_cpu() for kind in _KINDS)
    return Adapter({"attention": {name: one for each in modes for name, one in each.items()}})
