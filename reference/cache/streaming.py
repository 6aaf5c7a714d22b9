"""The cache of attention to an endless stream: the first tokens and the last ones."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from reference.position.rotary import rotary_embedding
from reference.softmax.attention import attention as softmax_attention


class StreamingCache:
    """Keys and values of the first tokens (sinks) and of a window of the last: lists of tokens.

        held of n ← held[:sinks] + (held[sinks:] + [token])[-window:]
        places    = 0, 1, ..., len(held) - 1
        o         = attention of the token, at the last place, to held, each key at its place

    Keys are held as they come, and rotated by their place in the cache and not in the stream, so
    that no distance exceeds what the model was trained with. Each token of an update first enters
    the cache and then attends.

    Args:
        batch: number of sequences B.
        sinks: first tokens of each sequence that stay, at least 0.
        window: last tokens that stay besides, the newest included, at least 1.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453,
        section 3.2.
    """

    def __init__(self, batch: int, sinks: int, window: int) -> None:
        for name, value, least in (("batch", batch, 1), ("sinks", sinks, 0), ("window", window, 1)):
            if value < least:
                raise ValueError(f"{name}: {value}, expected at least {least}")
        self.sinks, self.window = sinks, window
        self.tokens: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(batch)]

    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        cos: Float[Tensor, "R P"],
        sin: Float[Tensor, "R P"],
        *,
        attention: Callable[..., Any] = softmax_attention,
        **options: Any,
    ) -> Float[Tensor, "B T H V"]:
        """Append the tokens one after the other, and return what each attends to.

        Args:
            q, k, v: of the new tokens, not rotated.
            cos, sin: tables of at least `sinks + window` places, see `rotary_embedding`.
            options: of `attention`; its `causal` and `window` follow from the cache.

        Raises:
            ValueError: another batch than the cache has; tables too short. The cache is then as it
                was.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dim() != 4 or x.shape[:2] != (len(self.tokens), k.shape[1]):
                wanted = f"[{len(self.tokens)}, T, heads, dim]"
                raise ValueError(f"{name}: shape {list(x.shape)}, expected {wanted}")
        if cos.shape[0] < self.sinks + self.window:
            places = self.sinks + self.window
            raise ValueError(f"cos: {cos.shape[0]} places, expected at least {places}")
        o = q.new_zeros(*q.shape[:3], v.shape[-1])
        for n, held in enumerate(self.tokens):
            for t in range(k.shape[1]):
                held = [*held, (k[n, t].clone(), v[n, t].clone())]
                held = held[: self.sinks] + held[self.sinks :][-self.window :]
                keys = torch.stack([key for key, _ in held])[None]
                values = torch.stack([value for _, value in held])[None]
                query = q[n : n + 1, t : t + 1]
                query = rotary_embedding(query, cos, sin, seqlen_offsets=len(held) - 1)
                keys = rotary_embedding(keys, cos, sin)
                o[n, t] = attention(query, keys, values, causal=True, **options)[0][0, 0]
            self.tokens[n] = held
        return o

    def reset(self) -> None:
        """Forget everything."""
        self.tokens = [[] for _ in self.tokens]
