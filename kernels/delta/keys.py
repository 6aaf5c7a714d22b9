"""Keys of delta rules, which an option makes unit vectors."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.norm.l2norm import EPS, normalized, normalized_backward
from kernels.passes import Gradients, Passes


def normalized_keys(passes: Passes) -> Passes:
    """Divide q and k by their lengths, if `use_qk_l2norm_in_kernel` says so."""

    def forward(
        *, q: Tensor, k: Tensor, use_qk_l2norm_in_kernel: bool, **given: Any
    ) -> tuple[Tensor | None, ...]:
        q, k = (normalized(q), normalized(k)) if use_qk_l2norm_in_kernel else (q, k)
        return passes.forward(q=q, k=k, **given)

    def backward(*, q: Tensor, k: Tensor, use_qk_l2norm_in_kernel: bool, **given: Any) -> Gradients:
        if not use_qk_l2norm_in_kernel:
            return passes.backward(q=q, k=k, **given)
        if q.dtype == torch.float16:
            # The gradient of a unit key may leave its range where that of a long one does not.
            given["keys_dtype"] = torch.float32
        gradients = passes.backward(q=normalized(q), k=normalized(k), **given)
        dq, dk = (normalized_backward(x, gradients[name]) for name, x in (("q", q), ("k", k)))
        return gradients | {"q": dq, "k": dk}

    takes = passes.takes | {"use_qk_l2norm_in_kernel"}
    return replace(passes, takes=takes, forward=forward, backward=backward)


def unit_keys(use_qk_l2norm_in_kernel: bool, *keys: Tensor) -> tuple[Tensor, ...]:
    """Divide keys by their lengths in PyTorch, for a wrapper: it must launch no kernel before the
    values of `cu_seqlens` are checked.
    """
    return tuple(_unit(x) for x in keys) if use_qk_l2norm_in_kernel else keys


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide / torch.sqrt(wide.square().sum(-1, keepdim=True) + EPS)).to(x.dtype)
