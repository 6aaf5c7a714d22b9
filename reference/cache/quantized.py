"""The cache of softmax attention in 8 bits, as a list of tokens."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.arguments import describe
from reference.cache.counts import check_size
from reference.cache.kv import CacheView, KVCache

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest code c of each dtype."""


class QuantizedCache(KVCache):
    """Keys and values of the tokens seen so far, each number a code of 8 bits and a scale.

        scale_g  = max_{t, d} |x_tgd| / c       tokens t of the block in the update that begins it
        code_tgd = x_tgd / scale_g              rounded to the nearest, ties to even, |code| <= c
        token    = scale_g code_tgd             what attention sees

    A block is `block` consecutive tokens of a sequence; keys and values, and every head g, have
    scales of their own. Later updates of a block use its scale, and larger numbers saturate. So the
    tokens depend on where a prompt is cut, unless a block is one token. A scale of 0 gives 0.

    Scales, quotients and tokens are float32 numbers, each rounded once. Numbers are finite.

    Args:
        batch: number of sequences B.
        bits: dtype of the codes: int8 with c = 127, or float8_e4m3fn with c = 448.
        block: tokens that share a scale, at least 1.
        k_scale, v_scale: one scale for all keys and one for all values, in place of those of
            blocks: finite float32 numbers >= 0.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv 2209.05433), section 3, for
    scaling and saturation; Liu et al., "KIVI" (arXiv 2402.02750) for scales per token.
    """

    def __init__(
        self,
        batch: int,
        bits: torch.dtype,
        *,
        block: int = 1,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        super().__init__(batch)
        if bits not in LARGEST:
            raise TypeError(f"bits: {bits}, expected torch.int8 or torch.float8_e4m3fn")
        check_size("block", block)
        if (k_scale is None) != (v_scale is None):
            raise ValueError("k_scale, v_scale: one is given, expected both or none")
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            _check_scale(name, scale)
        self.bits, self.block = bits, block
        self.given = None if k_scale is None or v_scale is None else (k_scale, v_scale)
        self.scales: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(batch)]

    def update(
        self,
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        offset: int | Int[Tensor, " B"] | None = None,
    ) -> CacheView:
        """Append new tokens as codes and scales; return what they attend to, in float32."""
        counts = self._check(k, v, offset)
        tokens = k.float().clone(), v.float().clone()
        for n, count in enumerate(counts):
            scales = self.scales[n] = self.scales[n][: len(self.tokens[n])]
            first = len(scales)
            for t in range(count):
                begin = (first + t) // self.block * self.block
                new = slice(max(begin - first, 0), min(begin - first + self.block, count))
                if self.given is not None:
                    pair = [
                        x.new_full(x.shape[2:3], s) for x, s in zip(tokens, self.given, strict=True)
                    ]
                elif begin < len(scales):
                    pair = list(scales[begin])
                else:
                    c = torch.tensor(LARGEST[self.bits])
                    pair = [x[n, new].abs().amax((0, 2)) / c for x in (k.float(), v.float())]
                scales.append((pair[0], pair[1]))
                for x, scale in zip(tokens, pair, strict=True):
                    x[n, t] = scale[:, None] * codes(x[n, t], scale, self.bits).float()
        return super().update(*tokens, offset)

    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        **options: Any,
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"] | None]:
        """Append new tokens, then let each attend causally to itself and what came before."""
        scales = [*self.scales]
        try:
            o, lse = super().attend(q.float(), k, v, **options)
        except BaseException:
            self.scales = scales
            raise
        return o.to(q.dtype), lse

    def reorder(self, index: Int[Tensor, " M"]) -> None:
        """Make sequence n what sequence `index[n]` was, see `KVCache.reorder`."""
        super().reorder(index)
        self.scales = [list(self.scales[n]) for n in index.tolist()]

    def _check(self, k: Tensor, v: Tensor, offset: int | Tensor | None) -> list[int]:
        return super()._check(k.float(), v.float(), offset)


def _check_scale(name: str, scale: float | None) -> None:
    """Refuse anything but None and a number that float32 has, at least 0."""
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"{name}: {describe(scale)}, expected a number or None")
    if not 0 <= scale <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name}: {scale}, expected a finite float32 number >= 0")


def codes(x: Float[Tensor, "G D"], scale: Float[Tensor, " G"], bits: torch.dtype) -> Tensor:
    """The codes of one token."""
    c = LARGEST[bits]
    code = torch.where(scale[:, None] == 0, 0.0, x / scale[:, None]).clamp(-c, c)
    return (code.round() if bits == torch.int8 else code).to(bits)
