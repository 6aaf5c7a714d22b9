"""The arguments of a call, and the results by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call.

    Args:
        tensors: by name; a tensor passed as two arguments is here once.
        options: the other arguments.
        same: argument → another argument whose tensor is passed for it too.
        channels: argument → how many of the tensor's channels, the first ones, if not all.
        trained: the tensors that need a gradient.
    """

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    same: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    trained: tuple[str, ...] = ()

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Inputs":
        """Convert to another float dtype and device, contiguous."""
        tensors = {
            n: x.to(device, dtype if x.is_floating_point() else x.dtype).contiguous()
            for n, x in self.tensors.items()
        }
        moved = {n: _moved(value, device) for n, value in self.options.items()}
        return self.with_tensors(tensors).with_options(**moved)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Inputs":
        return replace(self, tensors={**self.tensors, **tensors})

    def with_options(self, **options: Any) -> "Inputs":
        return replace(self, options={**self.options, **options})

    def given(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return every argument by name, with these tensors or with others in their place."""
        own = self.tensors if tensors is None else tensors
        return {**own, **{name: self.twin(name, own) for name in self.same}, **self.options}

    def twin(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return an argument that is another's tensor, or its first channels."""
        x, channels = tensors[self.same[name]], self.channels.get(name)
        return x if channels is None else x[..., :channels]


def _moved(value: Any, device: torch.device | str) -> Any:
    if not isinstance(value, dict):
        return value
    return {n: x.to(device) if isinstance(x, Tensor) else x for n, x in value.items()}
