"""The Triton kernels of SGLang's attention backend."""

import torch

from properties.targets.adapter import Adapter
from properties.targets.sglang.implementations import implementations


def target(device: torch.device) -> Adapter:
    """Return the kernels of the installed release.

    Raises:
        ValueError: the package is not installed.
    """
    return Adapter(implementations(device))
