"""The contexts a call runs in: with gradients, without, in inference mode, under autocast, with or
without its backward pass, compiled, run again for its backward pass, with two backward passes.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Context = Callable[[str], AbstractContextManager[Any]]


@contextmanager
def _bfloat16_by_default() -> Iterator[None]:
    """Make bfloat16 the default dtype, as model code does, so that tensors made without a dtype
    round.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Name → function of the device type that returns a context manager for the call.
CONTEXTS: dict[str, Context] = {
    # A call before it may have switched gradients off, and the oracle must have them.
    "grad": lambda device: torch.enable_grad(),
    "no_grad": lambda device: torch.no_grad(),
    "inference_mode": lambda device: torch.inference_mode(),
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "autocast_backward": lambda device: torch.autocast(device, torch.bfloat16),
    "bfloat16_by_default": lambda device: _bfloat16_by_default(),
    "checkpointed": lambda device: nullcontext(),
    "backward_twice": lambda device: nullcontext(),
    "compiled": lambda device: nullcontext(),
}
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")
# Its backward pass runs in it as well.
AROUND_BACKWARD = ("autocast_backward",)
# These change the call itself, and nothing around it.
OF_THE_CALL = ("compiled", "checkpointed", "backward_twice")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` with `torch.compile` in one graph, after clearing earlier traces."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep nothing of a call, and run it again for its backward pass, as models save memory."""
    return partial(checkpoint, function, use_reentrant=False)
