"""The cache of attention to an endless stream: the first tokens and the last ones."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.cache.counts import check_size
from reference.cache.kv import TokenLists
from reference.position.rotary import rotary_embedding
from reference.softmax.attention import attention as softmax_attention


class StreamingCache(TokenLists):
    """Keys and values of the first tokens (sinks) and of a window of the last: lists of tokens.

        held of n ← held[:sinks] + (held[sinks:] + [token])[-window:]
        places    = 0, 1, ..., len(held) - 1
        o         = attention of the token, at the last place, to held, each key at its place
        reorder:    held of n ← held of index[n]
        reset:      held ← []

    Keys are held as they come, and rotated by their place in the cache and not in the stream, so
    that no distance exceeds what the model was trained with. Each token of an update first enters
    the cache and then attends. `length` counts the tokens seen, the forgotten ones too.

    Args:
        batch: number of sequences B.
        sinks: first tokens of each sequence that stay, at least 0.
        window: last tokens that stay besides, the newest included, at least 1.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453,
        section 3.2.
    """

    window: int
    options = ("scale", "softcap", "sink", "alibi_slopes")

    def __init__(self, batch: int, sinks: int, window: int) -> None:
        super().__init__(batch)
        check_size("sinks", sinks, least=0)
        check_size("window", window)
        self.sinks, self.window = sinks, window

    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        cos: Float[Tensor, "R P"],
        sin: Float[Tensor, "R P"],
        *,
        offset: int | Int[Tensor, " B"] | None = None,
        attention: Callable[..., Any] = softmax_attention,
        **options: Any,
    ) -> Float[Tensor, "B T H V"]:
        """Append the tokens one after the other, and return what each attends to.

        Args:
            q, k, v: of the new tokens, not rotated.
            cos, sin: tables of at least `sinks + window` places, see `rotary_embedding`.
            offset: how many of the T tokens are real, see `KVCache.update`; the o of others is 0.
            options: those of `options`, of `attention`: scale, softcap, sink, alibi_slopes.

        Raises:
            TypeError: `offset` is no int and no integer tensor.
            ValueError: another batch than the cache has, or other heads, head dims or dtypes than
                its tokens; tables too short; an `offset` below 0 or above T; another
                option than these. The cache is then as it was.
        """
        self._check_options(options)
        counts = self._check(k, v, offset)
        if q.dim() != 4 or q.shape[:2] != k.shape[:2]:
            raise ValueError(f"q: shape {list(q.shape)}, expected B and T of k, {list(k.shape)}")
        if cos.shape[0] < self.sinks + self.window:
            places = self.sinks + self.window
            raise ValueError(f"cos: {cos.shape[0]} places, expected at least {places}")
        o = q.new_zeros(*q.shape[:3], v.shape[-1])
        tokens, forgotten = list(self.tokens), list(self.forgotten)
        if not any(counts):
            q, k = (rotary_embedding(x[:, :0], cos, sin) for x in (q, k))
            attention(q, k, v[:, :0], causal=True, **options)
        for n, held in enumerate(tokens):
            for t in range(counts[n]):
                held = [*held, (k[n, t].clone(), v[n, t].clone())]
                forgotten[n] += len(held) > self.sinks + self.window
                held = held[: self.sinks] + held[self.sinks :][-self.window :]
                keys = torch.stack([key for key, _ in held])[None]
                values = torch.stack([value for _, value in held])[None]
                query = q[n : n + 1, t : t + 1]
                query = rotary_embedding(query, cos, sin, seqlen_offsets=len(held) - 1)
                keys = rotary_embedding(keys, cos, sin)
                o[n, t] = attention(query, keys, values, causal=True, **options)[0][0, 0]
            tokens[n] = held
        self.tokens, self.forgotten = tokens, forgotten
        return o
