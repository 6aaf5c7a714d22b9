"""How a kernel computes a call: all that its errors depend on but the numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from properties.catalogue.telescope import Telescope
from properties.verdict.precision import Precision


@dataclass(frozen=True)
class InheritedError:
    """The error that a tensor has before a perturbed run: one that kernels inherit.

    Args:
        size: standard deviation, by element.
        shape: shape of the shared factor: 1 along dims whose elements err together.
    """

    size: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How a kernel computes the results of one call.

    Args:
        precision: how it stores the operands of its products.
        output_dtypes: dtype of each returned result.
        terms: terms of the longest accumulation: tokens of the longest sequence plus head dim.
        alike: many terms are equal, so that their errors are no random walk.
        gates: names of tensors that enter through an exponential, such as log decays.
        constant_decay: the largest constant log decay, without its sign. Its logarithm is rounded
            before it is summed, so it counts like a gate; its exponential has the same error at
            every token.
        telescopes: results that are differences of large sums.
        float32_logits: products of two inputs and elementwise functions of them are never stored,
            as in softmax attention. Not for maps whose products may be reordered.
        row_sums: relative error of what the gradient of a softmax subtracts in a row, beside the
            `inherited` error of an LSE.
        inherited: errors that tensors have before the perturbed runs, by name.
        backward: names of the cotangents and gradients, on whose size no other result depends.
        parts: rounded gradients that are added up, stacked, by the name of their sum.
    """

    precision: Precision
    output_dtypes: Mapping[str, torch.dtype]
    terms: int
    alike: bool = False
    gates: tuple[str, ...] = ()
    constant_decay: float = 0.0
    telescopes: tuple[Telescope, ...] = ()
    float32_logits: bool = False
    row_sums: float = 0.0
    inherited: Mapping[str, InheritedError] = field(default_factory=dict)
    backward: frozenset[str] = frozenset()
    parts: Mapping[str, Tensor] = field(default_factory=dict)
