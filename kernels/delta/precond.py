"""Preconditioned delta rules: the energy of earlier keys shrinks the key that is written."""

import math
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.delta.keys import unit_keys
from kernels.linear.hgrn import scan
from kernels.primitives.layout import widened
from kernels.primitives.states import without_last
from kernels.recurrence import DeltaOptions, compute, wrapper

_BASE, _EPS, _CENTER = 1.5, 1e-6, -0.2


def as_dplr(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, g_atk: Tensor | None,
    beta_atk: Tensor | None, log_atk_scale: Tensor | None, use_qk_l2norm_in_kernel: bool,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    within = q.dtype
    q, k, v, g = widened(q, k, v, g)
    dtype = q.dtype
    q, k = unit_keys(use_qk_l2norm_in_kernel, q, k)
    S, A = without_last(initial_state)
    wide = k.float()
    energy = wide.square() if beta_atk is None else beta_atk.float()[..., None] * wide.square()
    decay = torch.zeros_like(wide) if g_atk is None else g_atk.float()[..., None].expand(k.shape)
    energy, A = scan(
        energy.flatten(2), decay.flatten(2), output_final_state=True, cu_seqlens=cu_seqlens,
        initial_state=None if A is None else A.flatten(1),
    )  # fmt: skip
    center = _CENTER if log_atk_scale is None else log_atk_scale.float()[:, None]
    r = torch.log(energy.unflatten(2, k.shape[2:]) + _EPS) - center
    written = torch.exp(-math.log(_BASE) * r / (1 + r.abs())) * wide
    written = (written if beta is None else beta.float()[..., None] * written).to(dtype)
    # S' = diag(exp g) S, so S'ᵀ k = Sᵀ (exp(g) ∘ k).
    if g is not None and g.dim() == 3:
        # Its gradient is a sum over channels, whose parts stay in float32.
        g = g.float()[..., None].expand(k.shape)
    read = k if g is None else (torch.exp(g.float()) * wide).to(dtype)
    o, S = compute(
        dplr.__name__, q=q, k=written, v=v, a=read, b=-written, gk=g,
        initial_state=S, cu_seqlens=cu_seqlens, within=within, **given,
    )  # fmt: skip
    if S is None:
        return o, None
    return o, torch.cat([S, A.unflatten(1, k.shape[2:])[..., None]], dim=-1)


@wrapper(as_dplr, "dplr")
def precond_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    g_atk: Float[Tensor, "B T H"] | None = None,
    beta_atk: Float[Tensor, "B T H"] | None = None,
    log_atk_scale: Float[Tensor, "H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """The preconditioned gated delta rule, `reference.precond_gated_delta_rule`: a scan for the
    energies, and `dplr`.
    """


@wrapper(as_dplr, "dplr")
def precond_kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    g_atk: Float[Tensor, "B T H"] | None = None,
    beta_atk: Float[Tensor, "B T H"] | None = None,
    log_atk_scale: Float[Tensor, "H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """Kimi delta attention with preconditioned keys, `reference.precond_kda`: a scan for the
    energies, and `dplr`.
    """
