"""What the delta rules share: normalised keys, grouped heads, and what scale means."""

from torch import Tensor

from reference import recurrence
from reference.norm.l2norm import l2norm
from reference.scale import resolve_scale


def run(
    form: recurrence.Form,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    use_qk_l2norm_in_kernel: bool,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a delta rule over every sequence of a batch.

    Args:
        form: `(q, k, v, *log_decay, beta, S, scale) -> (o, S)` for sequences of one length, with
            as many heads of q and k as of v.
        q, k, v: `[B, T, G, K]`, `[B, T, G, K]`, `[B, T, H, V]`, where G divides H.
        log_decay: `[B, T, H]` or `[B, T, H, K]`, or None.
        The rest are the options of the op.

    Returns:
        `o [B, T, H, V]` in the dtype of `q`, and the states `[N, H, K, V]`, or None.
    """
    (G, K), (H, V) = q.shape[2:], v.shape[2:]
    if G == 0 or H % G:
        raise ValueError(f"v: {H} heads, expected a multiple of the {G} heads of q and k")
    scale = resolve_scale(scale, K)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    o, final_state = recurrence.run(
        form,
        q.repeat_interleave(H // G, dim=2),
        k.repeat_interleave(H // G, dim=2),
        v,
        *log_decay,
        v.new_ones(v.shape[:3]) if beta is None else beta,
        state_shape=(H, K, V),
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        scale=scale,
    )
    return o.to(q.dtype), final_state
