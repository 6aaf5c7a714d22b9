"""A paged cache of the latents of multi-head latent attention."""

from typing import Any, Unpack

import torch
from torch import Tensor

from kernels.arguments import bind_dims, check_flags, check_one_dtype, check_size, check_tensors
from kernels.cache.kv import Storage, allocate
from kernels.cache.paged import PagedCache
from kernels.scale import resolve_scale
from kernels.softmax.mla import mla
from kernels.softmax.paged import paged_attention


class LatentCache(PagedCache):
    """Latents and rotary keys in pages of one memory, `pool` [P, page_size, 1, R + D].

    `k_pages` are its first R columns, the latents, and `v_pages` the other D, the rotary keys; all
    heads share both. So `update` takes c [B, T, 1, R] for k, and k_r [B, T, 1, D] for v. Pages are
    as those of `PagedCache`.

    Args:
        batch: number of sequences B.
        num_pages, page_size: the pool.
        latent_dim, rotary_dim: R and D.
        dtype: float32, bfloat16 or float16.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    options = ("return_lse", "num_splits", "mode", "tile")
    _gathers = False

    def __init__(
        self, batch: int, num_pages: int, page_size: int, latent_dim: int, rotary_dim: int,
        **storage: Unpack[Storage],
    ) -> None:  # fmt: skip
        check_size("latent_dim", latent_dim)
        check_size("rotary_dim", rotary_dim)
        super().__init__(batch, num_pages, page_size, 1, latent_dim, rotary_dim, **storage)

    def _allocate(self, *sizes: int, **storage: Unpack[Storage]) -> tuple[Tensor, Tensor]:
        *pages, latent_dim, rotary_dim = sizes
        self.pool, _ = allocate(*pages, latent_dim + rotary_dim, 1, **storage)
        return self.pool[..., :latent_dim], self.pool[..., latent_dim:]

    @classmethod
    def from_pages(cls, *_: Any, **__: Any) -> "PagedCache":
        """A latent cache begins empty."""
        raise NotImplementedError("from_pages: a latent cache begins empty")

    def attend(
        self,
        q_n: Tensor,
        q_r: Tensor,
        c: Tensor,
        k_r: Tensor,
        w_uk: Tensor,
        w_uv: Tensor,
        *,
        offset: int | Tensor | None = None,
        absorbed: bool = True,
        scale: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Append new tokens, then let each attend causally to itself and what came before.

            q'_ih = (w_uk_hᵀ q_n_ih, q_r_ih)
            o_ih  = w_uv_h Σ_j softmax_j(scale q'_ih · pool_j) c_j            if absorbed

        Args:
            q_n, q_r: queries [B, T, H, K] and [B, T, H, D] of the new tokens.
            c, k_r: their latents [B, T, 1, R] and rotary keys [B, T, 1, D].
            w_uk, w_uv: up-projections [H, K, R] and [H, V, R].
            offset: as in `update`.
            absorbed: let `paged_attention` read the pages where they lie, without a gradient. It
                rounds q' and the sums of latents to the dtype. False: gather the pages for `mla`,
                which computes the naive form.
            scale: None and -1 mean `(K + D) ** -0.5`.
            options: those of `options`: return_lse; mode and tile, of that function; and, if
                absorbed, num_splits.

        Returns:
            o [B, T, H, V], and the LSE [B, H, T] if asked for. Padding rows are 0, their LSE -inf.

        Raises:
            TypeError, ValueError: as `update` and that function do, with nothing appended; another
                option than these; num_splits with `absorbed=False`.
        """
        self._check_options(options)
        given = {"q_n": q_n, "q_r": q_r, "c": c, "k_r": k_r, "w_uk": w_uk, "w_uv": w_uv}
        check_tensors(**given)
        dims = ("B T H K", "B T H D", "B T 1 R", "B T 1 D", "H K R", "H V R")
        sizes = bind_dims(**dict(zip(given, zip(given.values(), dims, strict=True), strict=True)))
        check_one_dtype(**given)
        check_flags(absorbed=absorbed)
        if not absorbed and "num_splits" in options:
            raise ValueError("num_splits: given with absorbed=False, expected none without pages")
        options["scale"] = resolve_scale(scale, sizes["K"] + sizes["D"])

        def naive(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
            q_n, q_r = q.split((sizes["K"], sizes["D"]), -1)
            return mla(q_n, q_r, k[:, :, 0], v[:, :, 0], w_uk, w_uv, **more)

        attention = None if absorbed else naive
        with torch.autocast(q_n.device.type, enabled=False):
            if absorbed:
                q_n = torch.einsum("bthk,hkr->bthr", q_n, w_uk)
            q = torch.cat([q_n, q_r], -1)
            o, lse = self._attend_padded(q, c, k_r, offset, attention, options)
            return torch.einsum("bthr,hvr->bthv", o, w_uv) if absorbed else o, lse

    def _attend_in_place(
        self, q: Tensor, lengths: Tensor, cu_seqlens: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        return paged_attention(
            q,
            self.pool,
            self.k_pages,
            self._table(),
            lengths,
            causal=True,
            cu_seqlens=cu_seqlens,
            **options,
        )
