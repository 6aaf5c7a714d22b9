"""What the linear recurrences share: where a state starts, and how a row is normalised."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from reference.scale import resolve_scale
from reference.sequences import sequences

Form = Callable[..., tuple[Tensor, Tensor]]


def run(
    form: Form,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *log_decays: Tensor | None,
    scale: float | None,
    normalize: bool,
    initial_state: Tensor | None,
    output_final_state: bool,
    reverse: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a recurrence over every sequence of a batch.

    Args:
        form: `(q, k, v, *log_decays, S, scale, reverse) -> (o, S)` for sequences of one length.
        q, k, v: `[B, T, H, K]`, `[B, T, H, K]`, `[B, T, H, V]`.
        log_decays: of the keys `[B, T, H, K]` and of the values `[B, T, H, V]`, or None.
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

    batch, tokens = q.shape[:2]
    groups = list(sequences(cu_seqlens, batch, tokens))
    if initial_state is None:
        initial_state = v.new_zeros(groups[-1][0].stop, *k.shape[2:], v.shape[-1])
    dtype = _promoted(q, k, v, *log_decays, initial_state)
    inputs = [None if x is None else x.to(dtype) for x in (q, k, v, *log_decays)]
    states = initial_state.to(dtype)

    outputs, final_states = [], []
    for n, t in groups:
        pieces = (None if x is None else x[:, t] for x in inputs)
        o, S = form(*pieces, states[n], scale, reverse)
        outputs.append(o)
        final_states.append(S)
    o = torch.cat(outputs, dim=1)
    if normalize:
        o = _divide(o[..., :-1], o[..., -1:])
    return o.to(q.dtype), torch.cat(final_states) if output_final_state else None


def _append(x: Tensor, channel: float) -> Tensor:
    return torch.cat([x, torch.full_like(x[..., :1], channel)], dim=-1)


def _divide(numerator: Tensor, normalizer: Tensor) -> Tensor:
    # The inner `where` keeps the gradient of the branch not taken finite: 0 · inf would be NaN.
    zero = normalizer == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, normalizer))


def _promoted(*tensors: Tensor | None) -> torch.dtype:
    return functools.reduce(torch.promote_types, [x.dtype for x in tensors if x is not None])
