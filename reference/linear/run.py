"""What the linear recurrences share: what scale means, and how a row is normalised."""

import torch
from torch import Tensor

from reference import recurrence
from reference.scale import resolve_scale


def run(
    form: recurrence.Form,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *log_decays: Tensor | None,
    scale: float | None,
    normalize: bool = False,
    initial_state: Tensor | None,
    output_final_state: bool,
    reverse: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a recurrence over every sequence of a batch.

    Args:
        form: `(q, k, v, *log_decays, S, scale, reverse) -> (o, S)` for sequences of one length.
        q, k, v: `[B, T, H, K]`, `[B, T, H, K]`, `[B, T, H, V]`.
        log_decays: of the keys `[B, T, H, K]` and of the values `[B, T, H, V]`, or of both
            `[B, T, H]`, or None.
        The rest are the options of the op.

    Returns:
        `o [B, T, H, V]` in the dtype of `q`, and the states `[N, H, K, V+normalize]`, or None.
    """
    scale = resolve_scale(scale, q.shape[-1])
    if normalize:
        scale = 0.0 if scale == 0 else 1.0  # any other scale cancels
        v = _append(v, 1.0)
        log_decays = log_decays[:1] + tuple(
            gv if gv is None else _append(gv, 0.0) for gv in log_decays[1:]
        )
    o, final_state = recurrence.run(
        form,
        q,
        k,
        v,
        *log_decays,
        state_shape=(*k.shape[2:], v.shape[-1]),
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        scale=scale,
        reverse=reverse,
    )
    if normalize:
        o = _divide(o[..., :-1], o[..., -1:])
    return o.to(q.dtype), final_state


def _append(x: Tensor, channel: float) -> Tensor:
    return torch.cat([x, torch.full_like(x[..., :1], channel)], dim=-1)


def _divide(numerator: Tensor, normalizer: Tensor) -> Tensor:
    # The inner `where` keeps the gradient of the branch not taken finite: 0 · inf would be NaN.
    zero = normalizer == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, normalizer))
