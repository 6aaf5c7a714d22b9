"""Linear attention whose state decays by one factor per head and token, token by token."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["scale", "T", "H", "K", "V"])
def _forward(
    q_ptr, k_ptr, v_ptr, g_ptr, o_ptr, state_ptr, scale, T, H, K, V,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T; o_t = S_t^T q_t. A program for each sequence and head."""
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key, value = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    for t in range(T):
        row = (batch * T + t) * H + head
        q = tl.load(q_ptr + row * K + key, mask=key < K, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * K + key, mask=key < K, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * V + value, mask=value < V, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + row).to(tl.float32)
        decay = tl.exp(g)
        # decay = tl.exp2(g)  # the planted bug: gates are natural logarithms
        state = state * decay + k[:, None] * v[None, :]
        o = tl.sum(state * q[:, None], 0) * scale
        tl.store(o_ptr + row * V + value, o, mask=value < V)
    at = ((batch * H + head) * K + key[:, None]) * V + value[None, :]
    tl.store(state_ptr + at, state, mask=(key[:, None] < K) & (value[None, :] < V))


def scalar_decay(q, k, v, g, scale):
    """Outputs [B, T, H, V] in the dtype of v, and the states after the last token [B, H, K, V]."""
    (B, T, H, K), V = q.shape, v.shape[-1]
    q, k, v, g = (x.contiguous() for x in (q, k, v, g))
    o, state = torch.empty_like(v), v.new_empty(B, H, K, V, dtype=torch.float32)
    blocks = triton.next_power_of_2(K), triton.next_power_of_2(V)
    if o.numel() or state.numel():
        _forward[(B, H)](q, k, v, g, o, state, scale, T, H, K, V, *blocks)
    return o, state
