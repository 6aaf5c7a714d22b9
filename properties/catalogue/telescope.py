"""Gradients that kernels form as a difference of large sums, and the oracle does not."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Telescope:
    """A gradient that kernels form as a difference of large sums, and the oracle does not.

    The gradient of a log decay is a sum over pairs of tokens on both sides of it. Kernels sum all
    pairs after it, once for the query and once for the key, so that the unwanted ones cancel:

        dg_t = Σ_{s >= t} (q_s ∘ dq_s - k_s ∘ dk_s) + Σ_v S_T ∘ dS_T

    (Yang et al., arXiv 2312.06635, appendix C). The errors of the cancelled terms remain. They are
    summed over all tokens on that side, including those of other packed sequences, and over the
    dims that the gradient lacks; a product that lacks one of the gradient's dims counts fully along
    it.

    Args:
        gradient: name of the result.
        dims: its dims by name, tokens second: "B T H K".
        products: (dims of the product: "B T H K", or "N H K V" of a state; name of its exact
            factor; name of its computed factor).
        reverse: tokens are numbered from the end, so that the sum is over s <= t.
    """

    gradient: str
    dims: str
    products: tuple[tuple[str, str, str], ...]
    reverse: bool = False

    def sum_of_errors(
        self, values: Mapping[str, Tensor], errors: Mapping[str, Tensor], power: int
    ) -> Tensor:
        """Return `(Σ |factor · error|^power)^(1 / power)` over the telescoping terms."""
        own = self.dims.split()
        total = torch.zeros((), dtype=torch.float64)
        for dims, exact, computed in self.products:
            letters = dims.split()
            size = (values[exact].nan_to_num() * errors[computed]).abs().pow(power)
            for axis, letter in reversed(list(enumerate(letters))):
                if letter not in own and letter != "N":
                    size = size.sum(axis)
            if "T" in letters:
                size = size.cumsum(1) if self.reverse else size.flip(1).cumsum(1).flip(1)
            else:
                packed = len(size) != len(values[self.gradient])
                size = (size.sum(0, keepdim=True) if packed else size)[:, None]
            for axis, letter in enumerate(own):
                if axis > 1 and letter not in letters:
                    size = size.unsqueeze(axis)
            total = total + size
        return total.pow(1 / power)
