"""How a cache is called: contexts, layouts, and bad calls."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor

from properties.cases import contexts

T = TypeVar("T")
CONTEXTS = tuple(
    name
    for name in contexts.CONTEXTS
    if name not in (*contexts.OF_THE_CALL, *contexts.AROUND_BACKWARD)
)


def context(name: str, device: torch.device) -> AbstractContextManager[object]:
    return contexts.CONTEXTS[name](device.type)


def is_expanded(x: Tensor) -> bool:
    """Whether elements share memory, so that none can be written alone."""
    return any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True))


def packed(*tensors: Tensor) -> list[Tensor]:
    """Copy tensors [B, T, heads, D] into slices of one [B, T, width], like a fused projection."""
    widths = [x.shape[2] * x.shape[3] for x in tensors]
    slices = tensors[0].new_empty(*tensors[0].shape[:2], sum(widths)).split(widths, -1)
    return [part.view(x.shape).copy_(x) for part, x in zip(slices, tensors, strict=True)]


def bits(x: Tensor) -> Tensor:
    """The bits of a tensor as integers, which tell NaN from NaN and -0 from 0."""
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(widths[x.element_size()])


def contents(x: Any) -> Any:
    """All that an object holds, its private attributes too, to compare with later contents."""
    match x:
        case Tensor():
            return x.dtype, tuple(x.shape), bits(x.detach()).flatten().tolist()
        case list() | tuple():
            return [contents(each) for each in x]
        case dict():
            return {name: contents(each) for name, each in x.items()}
        case _ if hasattr(x, "__dict__"):
            return contents(vars(x))
        case _:
            return x


def refuses(call: Callable[[T], object], argument: T) -> bool:
    """Whether a call raises a ValueError."""
    try:
        call(argument)
    except ValueError:
        return True
    return False


def check_refusal(argument: str, call: Callable[[], object]) -> None:
    """Check that `call` raises an error that names the argument first."""
    try:
        call()
    except (TypeError, ValueError) as error:
        message = str(error)
    else:
        raise AssertionError(f"a wrong {argument} was accepted")
    assert message.startswith(f"{argument}:"), f"{argument} is not named: {message}"
