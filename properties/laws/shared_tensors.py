"""Gradients to which several calls contribute, summed in float64.

A part of a gradient may leave the range of float16 where the sum does not. autograd would sum in
float16: an infinite part makes the sum infinite or NaN, which tells nothing about the calls.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from properties.cases.inputs import Inputs, Results


class SharedTensors:
    """The tensors that several calls share, and where a part of their gradients is infinite.

    Args:
        inputs: of the law's case.

    Attributes:
        infinite: "dx" → bool of x's shape, true where the gradient of a call is infinite. A part
            that is NaN is not: its sum is NaN, and fails.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._dtypes = {n: inputs.tensors[n].dtype for n in inputs.trained if n in inputs.tensors}
        self._channels = {n: inputs.tensors[n].shape[-1] for n in self._dtypes}
        self._same = inputs.same
        self.infinite: dict[str, Tensor] = {}

    def leaves(self, inputs: Inputs) -> Inputs:
        """Return the inputs with every tensor that needs a gradient in float64."""
        return inputs.with_tensors({name: inputs.tensors[name].double() for name in self._dtypes})

    def of_a_call(self, tensors: Mapping[str, Tensor]) -> Results:
        """Return leaves in their own dtype, as one call takes them."""
        return {name: self._of_a_call(self._same.get(name, name), x) for name, x in tensors.items()}

    def _of_a_call(self, name: str, x: Tensor) -> Tensor:
        dtype = self._dtypes.get(name)
        if dtype is None:
            return x
        part = x.to(dtype)
        if part.requires_grad:
            part.register_hook(partial(self._note, name))
        return part

    def _note(self, name: str, gradient: Tensor) -> None:
        infinite = pad(gradient.isinf(), (0, self._channels[name] - gradient.shape[-1]))
        if f"d{name}" in self.infinite:
            infinite |= self.infinite[f"d{name}"]
        self.infinite[f"d{name}"] = infinite

    def rounded(self, results: Results) -> Results:
        """Return the results of all calls together, gradients rounded to the tensors' dtypes."""
        dtypes = {f"d{name}": dtype for name, dtype in self._dtypes.items()}
        return {name: y.to(dtypes.get(name, y.dtype)) for name, y in results.items()}


def summed(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sum of the parts of a gradient, in their dtype, and where one is infinite."""
    stacked = torch.stack(list(parts))
    return stacked.double().sum(0).to(stacked.dtype), stacked.isinf().any(0)
