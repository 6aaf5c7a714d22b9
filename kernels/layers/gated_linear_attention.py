"""Gated linear attention as a layer that trains, prefills and decodes."""

from math import inf
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from kernels.arguments import check_cu_seqlens, check_range, count_sequences
from kernels.cache import RecurrentCache
from kernels.layers.heads import check_heads, check_hidden, part_of
from kernels.linear.gla import gla
from kernels.modes import check_mode
from kernels.norm.l2norm import check_eps
from kernels.primitives.groups import of_each_head


class GatedLinearAttention(nn.Module):
    """The token mixer of the GLA Transformer.

        q = x W_q,   k = x W_k,   v = x W_v                     cut into heads
        g = log σ(x W_1 W_2 + b) / τ                            log decay of each key channel
        o = gla(q, k, v, g)
        y = (swish(x W_r + b_r) ∘ RMSNorm(o)) W_o               normalized head by head

    With a cache the state goes on from call to call: a prompt and then its continuation, in pieces
    of any length down to one token, give what one call over all of it gives.

    Args:
        hidden_size: width of x and y.
        num_heads: H, heads of the queries.
        expand_k: width of all queries together, as a multiple of hidden_size; K is its H-th part.
        expand_v: the same for the outputs of all heads, and V.
        num_kv_heads: G, heads of keys, values and gates; query head h reads h // (H // G). H by
            default.
        gate_low_rank_dim: columns of W_1.
        gate_logit_normalizer: τ; the larger, the slower the state forgets.
        use_output_gate: multiply by swish(x W_r + b_r).
        norm_eps: added to the mean square in RMSNorm.
        mode: see `gla`.
        layer_idx: which layer of the cache is this one's.

    Raises:
        TypeError: a size that is no int.
        ValueError: a size below 1, heads that do not divide their width or each other, K or V
            above 256, a normalizer or an eps that is not positive and finite, an unknown mode.

    Source: Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training,
        arXiv 2312.06635, section 4.4.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        num_kv_heads: int | None = None,
        gate_low_rank_dim: int = 16,
        gate_logit_normalizer: float = 16.0,
        use_output_gate: bool = True,
        norm_eps: float = 1e-5,
        mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        num_kv_heads = check_heads(
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            gate_low_rank_dim=gate_low_rank_dim,
        )
        if not 0 < gate_logit_normalizer < inf:
            raise ValueError(
                f"gate_logit_normalizer: {gate_logit_normalizer}, expected a positive finite number"
            )
        check_eps(norm_eps)
        check_mode(mode, "chunk", "fused_recurrent")
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.key_dim = _head_dim("expand_k", expand_k, hidden_size, num_heads)
        self.value_dim = _head_dim("expand_v", expand_v, hidden_size, num_heads)
        self.gate_logit_normalizer = gate_logit_normalizer
        self.mode = mode
        self.layer_idx = layer_idx

        keys, values = num_kv_heads * self.key_dim, num_kv_heads * self.value_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * self.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(hidden_size, values, bias=False)
        self.decay_proj = nn.Sequential(
            nn.Linear(hidden_size, gate_low_rank_dim, bias=False),
            nn.Linear(gate_low_rank_dim, keys),
        )
        self.norm = nn.RMSNorm(self.value_dim, eps=norm_eps)
        self.gate_proj = (
            nn.Linear(hidden_size, num_heads * self.value_dim) if use_output_gate else None
        )
        self.o_proj = nn.Linear(num_heads * self.value_dim, hidden_size, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B T hidden"],
        *,
        cache: RecurrentCache | None = None,
        cu_seqlens: Int[Tensor, " N+1"] | None = None,
    ) -> Float[Tensor, "B T hidden"]:
        """Mix the tokens of each sequence, each with those before it.

        Args:
            x: `[B, T, hidden_size]`.
            cache: of the N sequences; its state of layer `layer_idx` is where they go on, and is
                then replaced by the one after these tokens. None: they start here.
            cu_seqlens: boundaries of N packed sequences `[N+1]`, in tokens; B is then 1.

        Returns:
            y: `[B, T, hidden_size]`.

        Raises:
            TypeError, ValueError: see `gla`; an x of another width; a cache of another number of
                sequences or without this layer.
        """
        batch, tokens = check_hidden(x, self.hidden_size)
        q = self.q_proj(x).view(batch, tokens, self.num_heads, self.key_dim)
        k, v, decay = (
            of_each_head(projection(x).view(batch, tokens, self.num_kv_heads, dim), self.num_heads)
            for projection, dim in (
                (self.k_proj, self.key_dim),
                (self.v_proj, self.value_dim),
                (self.decay_proj, self.key_dim),
            )
        )
        # float32, because a decay near 1 is all in the digits that a bfloat16 has not.
        g = F.logsigmoid(decay.float()) / self.gate_logit_normalizer
        o, state = gla(
            q,
            k,
            v,
            g,
            initial_state=None if cache is None else self._state(cache, x, cu_seqlens),
            output_final_state=cache is not None,
            cu_seqlens=cu_seqlens,
            mode=self.mode,
        )
        if cache is not None:
            # Tokens are counted on x, whose dim 1 is T whatever is done to the heads.
            offset = tokens if cu_seqlens is None else cu_seqlens.diff()
            cache.update(state, layer=self.layer_idx, offset=offset)
        o = self.norm(o).flatten(2)
        if self.gate_proj is not None:
            o = F.silu(self.gate_proj(x)) * o
        return self.o_proj(o)

    def _state(
        self, cache: RecurrentCache, x: Tensor, cu_seqlens: Int[Tensor, " N+1"] | None
    ) -> Float[Tensor, "N H K V"] | None:
        cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, x.shape[0], x.device)
        sequences = count_sequences(x.shape[0], cu_seqlens)
        if cache.batch != sequences:
            raise ValueError(f"cache: of {cache.batch} sequences, expected N={sequences}")
        return cache.state(self.layer_idx)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"key_dim={self.key_dim}, value_dim={self.value_dim}, mode={self.mode!r}, "
            f"layer_idx={self.layer_idx}"
        )


def _head_dim(name: str, expand: float, hidden_size: int, num_heads: int) -> int:
    """The width of one head when all of them together are `expand · hidden_size` wide."""
    width = part_of(hidden_size, expand)
    if width is None or width % num_heads:
        raise ValueError(
            f"{name}: {expand}, expected {name} * hidden_size = {expand * hidden_size:g} "
            f"to be a multiple of num_heads = {num_heads}"
        )
    check_range(f"{name} (width of a head)", width // num_heads, 1, 256)
    return width // num_heads
