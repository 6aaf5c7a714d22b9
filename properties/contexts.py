"""What a call may run in: with gradients, without, in inference mode, under autocast, compiled."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Context = Callable[[str], AbstractContextManager[Any]]

# By name: from the type of the device to the context manager around the call.
CONTEXTS: dict[str, Context] = {
    "grad": lambda device: nullcontext(),
    "no_grad": lambda device: torch.no_grad(),
    "inference_mode": lambda device: torch.inference_mode(),
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "compiled": lambda device: nullcontext(),
}
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as `torch.compile` traces it, in one graph; what it traced before is forgotten."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")
