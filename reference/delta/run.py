"""What the delta rules share: normalised keys, grouped heads, and what scale means."""

from torch import Tensor

from reference import recurrence
from reference.norm.l2norm import l2norm
from reference.scale import resolve_scale


def prepared(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, use_qk_l2norm_in_kernel: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k as each head of v reads them, and a strength for each of its writes.

    Args:
        q, k, v: `[B, T, G, K]`, `[B, T, G, K]`, `[B, T, H, V]`.
        beta: `[B, T, H]`, or None for 1.
        use_qk_l2norm_in_kernel: normalise q and k.

    Returns:
        `q [B, T, H, K]`, `k [B, T, H, K]` and `beta [B, T, H]`.

    Raises:
        ValueError: H is not a multiple of G.
    """
    G, H = q.shape[2], v.shape[2]
    if G == 0 or H % G:
        raise ValueError(f"v: {H} heads, expected a multiple of the {G} heads of q and k")
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    strength = v.new_ones(v.shape[:3]) if beta is None else beta
    return q.repeat_interleave(H // G, dim=2), k.repeat_interleave(H // G, dim=2), strength


def run(
    form: recurrence.Form,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a delta rule over every sequence of a batch.

    Args:
        form: `(q, k, v, *others, S, scale) -> (o, S)` for sequences of one length.
        q, k, v: `[B, T, H, K]`, `[B, T, H, K]`, `[B, T, H, V]`.
        others: whatever else a token has, or None.
        The rest are the options of the op.

    Returns:
        `o [B, T, H, V]` in the dtype of `q`, and the states `[N, H, K, V]`, or None.
    """
    o, final_state = recurrence.run(
        form,
        q,
        k,
        v,
        *others,
        state_shape=(*k.shape[2:], v.shape[-1]),
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        scale=resolve_scale(scale, q.shape[-1]),
    )
    return o.to(q.dtype), final_state
