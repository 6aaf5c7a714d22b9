"""Gated attention as a layer that trains, prefills and decodes."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from kernels.arguments import check_range, check_size
from kernels.cache import KVCache
from kernels.cache.counts import token_counts
from kernels.layers.heads import check_heads, check_hidden, part_of
from kernels.layers.rotary_embedding import RotaryEmbedding
from kernels.norm.l2norm import check_eps
from kernels.softmax.arguments import MAX_DIM, check_window
from kernels.softmax.attention import attention


class ZeroCentredRMSNorm(nn.Module):
    """RMSNorm whose weight is the factor's distance from 1, as of Gemma and Qwen3-Next.

        y = (1 + w) ∘ x / sqrt(mean(x²) + ε)                    in float32, w = 0 at first

    Weight decay then pulls the factor to 1 and not to 0.

    Args:
        dim: channels of x.
        eps: ε.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Return y, in the dtype of x."""
        return F.rms_norm(x.float(), x.shape[-1:], 1 + self.weight.float(), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


def _real_positions(
    cache: KVCache, offset: int | Int[Tensor, " B"], tokens: int
) -> Int[Tensor, "B T"]:
    """Position of each token; padding is where the last real token of its sequence is, or at 0.

    So no position of padding sets a scaling by the tokens so far.
    """
    counts = [min(count, tokens) for count in token_counts("offset", offset, cache.batch)]
    length = cache.length
    real = length.new_tensor(counts)[:, None]
    place = torch.arange(tokens, device=length.device).minimum(real - 1)
    return (length[:, None] + place) * (real > 0)


class GatedAttention(nn.Module):
    """The token mixer of Qwen3-Next's layers with attention.

        q_th, z_th = W_q_h x_t                                  a query and a gate of each head
        k_tg = W_k_g x_t,   v_tg = W_v_g x_t
        q_th = R_t norm(q_th),   k_tg = R_t norm(k_tg)          RMSNorm, head by head
        o_th = Σ_{j <= t} softmax_j(q_th · k_jg / sqrt K) v_jg
        y_t  = W_o (o_t ∘ sigmoid(z_t))

    R_t rotates a part of each head. With a cache a call goes on from the tokens before it: a prompt
    and then its continuation, in pieces of any length down to one token, give what one call over
    all of it gives. The names and shapes of the weights are those of `Qwen3NextAttention` in
    transformers.

    Args:
        hidden_size: width of x and y.
        num_heads: H, heads of queries and gates.
        num_kv_heads: G, heads of keys and values; query head h reads h // (H // G). H by default.
        head_dim: K, hidden_size // num_heads by default.
        partial_rotary_factor: the part of a head that is rotated, its first dims.
        rope_base, rope_scaling: base and scaling of `rotary_tables`. A scaling by the tokens so far
            rotates the keys of a call once, by its own tokens.
        window: number of keys seen, the query's own included; None for all. A sliding cache keeps
            as many.
        bias: whether projections add one.
        norm_eps: added to the mean square in the norms of queries and keys.

    Raises:
        TypeError: a size that is no int.
        ValueError: a size below 1, heads that do not divide their width or each other, K above 256,
            a part of a head that is not an even number of dims from 2 to K, a window below 1, an
            eps that is not positive and finite.

    Source: Qiu et al., Gated Attention for Large Language Models, arXiv 2505.06708, section 2.2.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        partial_rotary_factor: float = 0.25,
        rope_base: float = 10000.0,
        rope_scaling: Mapping[str, object] | None = None,
        window: int | None = None,
        bias: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        num_kv_heads = check_heads(
            hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads
        )
        if head_dim is None:
            if hidden_size % num_heads:
                raise ValueError(
                    f"hidden_size: {hidden_size}, expected a multiple of num_heads = {num_heads}, "
                    "or a head_dim"
                )
            head_dim = hidden_size // num_heads
        check_range("head_dim", check_size("head_dim", head_dim), 1, MAX_DIM)
        rotary_dim = part_of(head_dim, partial_rotary_factor)
        if rotary_dim not in range(2, head_dim + 1, 2):
            raise ValueError(
                f"partial_rotary_factor: {partial_rotary_factor}, expected an even number of dims "
                f"from 2 to head_dim = {head_dim}, not {partial_rotary_factor * head_dim:g}"
            )
        check_window(window)
        check_eps(norm_eps)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.window = window

        keys = num_kv_heads * head_dim
        self.q_proj = nn.Linear(hidden_size, 2 * num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=bias)
        self.q_norm = ZeroCentredRMSNorm(head_dim, norm_eps)
        self.k_norm = ZeroCentredRMSNorm(head_dim, norm_eps)
        self.rotary = RotaryEmbedding(
            head_dim, rotary_dim=rotary_dim, base=rope_base, scaling=rope_scaling
        )

    def forward(
        self,
        x: Float[Tensor, "B T hidden"],
        *,
        cache: KVCache | None = None,
        offset: int | Int[Tensor, " B"] | None = None,
        cu_seqlens: Int[Tensor, " N+1"] | None = None,
    ) -> Float[Tensor, "B T hidden"]:
        """Mix the tokens of each sequence, each with those before it.

        Args:
            x: `[B, T, hidden_size]`.
            cache: of the B sequences and of this layer alone, in the dtype of its keys. It gains
                these tokens. It keeps no graph: call under `torch.no_grad()`. None: sequences start
                here.
            offset: how many of the T tokens are real, see `KVCache.update`. The o of others is 0,
                so their y is the bias of `o_proj`, 0 without one, where x is finite. With a cache
                only.
            cu_seqlens: boundaries of N packed sequences `[N+1]`, in tokens; B is then 1. Without a
                cache only, which packs its sequences itself.

        Returns:
            y: `[B, T, hidden_size]`.

        Raises:
            TypeError, ValueError: see `attention` and `KVCache.attend`; an x of another width; a
                cache of another number of sequences, and then it gains nothing.
        """
        batch, tokens = check_hidden(x, self.hidden_size)
        if cache is None and offset is not None:
            raise ValueError("offset: given without a cache, expected none")
        if cache is not None and cu_seqlens is not None:
            raise ValueError("cu_seqlens: given beside a cache, expected none")
        if cache is not None and cache.batch != batch:
            raise ValueError(f"cache: of {cache.batch} sequences, expected B={batch}")

        q, gate = self.q_proj(x).view(batch, tokens, self.num_heads, 2, self.head_dim).unbind(3)
        k, v = (
            projection(x).view(batch, tokens, self.num_kv_heads, self.head_dim)
            for projection in (self.k_proj, self.v_proj)
        )
        where: dict[str, Any] = {"cu_seqlens": cu_seqlens}
        if cache is not None and offset is None:
            where = {"seqlen_offsets": cache.length}
        elif cache is not None:
            where = {"position_ids": _real_positions(cache, offset, tokens)}
        q, k = self.rotary(self.q_norm(q), self.k_norm(k), **where)
        if cache is None:
            o, _ = attention(q, k, v, causal=True, window=self.window, cu_seqlens=cu_seqlens)
        else:
            o, _ = cache.attend(q, k, v, offset=offset, window=self.window)
        return self.o_proj((o * torch.sigmoid(gate)).flatten(2))

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"head_dim={self.head_dim}, window={self.window}"
        )
