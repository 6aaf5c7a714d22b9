"""The cache of multi-head latent attention, as a list of tokens."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.cache.kv import KVCache
from reference.softmax.mla import mla


class LatentCache(KVCache):
    """Latents and rotary keys of the tokens seen so far: per sequence, a list of tokens.

        token  = (c_j, k_r_j)
        attend = mla of the new tokens to these and what came before

    All heads share both, so `update` takes c and k_r with one head each: c [B, T, 1, R] for the k
    of a `KVCache`, and k_r [B, T, 1, D] for its v.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    options = ("scale", "return_lse")

    def __init__(self, batch: int) -> None:
        super().__init__(batch)

    def attend(  # type: ignore[override]
        self,
        q_n: Float[Tensor, "B T H K"],
        q_r: Float[Tensor, "B T H D"],
        c: Float[Tensor, "B T 1 R"],
        k_r: Float[Tensor, "B T 1 D"],
        w_uk: Float[Tensor, "H K R"],
        w_uv: Float[Tensor, "H V R"],
        *,
        offset: int | Int[Tensor, " B"] | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"] | None]:
        """Append new tokens, then let each attend causally to itself and what came before.

        Args:
            q_n, q_r, c, k_r, w_uk, w_uv: as in `mla`, of the new tokens.
            offset: as in `update`.
            options: those of `options`, of `mla`: scale, return_lse.

        Returns, Raises: as `KVCache.attend`, by `mla`.
        """

        self._check_options(options)

        def attention(
            q: Tensor, k: Tensor, v: Tensor, **given: Any
        ) -> tuple[Tensor, Tensor | None]:
            q_n, q_r = q.split((w_uk.shape[1], q.shape[-1] - w_uk.shape[1]), -1)
            return mla(q_n, q_r, k[:, :, 0], v[:, :, 0], w_uk, w_uv, **given)

        q = torch.cat([q_n, q_r], -1)
        return super().attend(q, c, k_r, offset=offset, attention=attention, **options)
