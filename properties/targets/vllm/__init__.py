"""The Triton kernels of vLLM's attention backend."""

import torch

from properties.targets.adapter import Adapter
from properties.targets.engines import of_release
from properties.targets.vllm.implementations import DECLARED


def target(device: torch.device) -> Adapter:
    """Return the kernels of the installed release.

    Raises:
        ValueError: the package is not installed.
    """
    return of_release(DECLARED)
