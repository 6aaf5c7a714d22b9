"""A paged cache of 8-bit numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import FLOATS, check_number, check_size
from kernels.cache import pages
from kernels.cache.kv import CacheView, Update, allocate
from kernels.cache.paged import PagedCache

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest code of each dtype."""


class QuantizedCache(PagedCache):
    """Keys and values of 8 bits in pages, with a scale for each row and head.

        scale = max |x| / c       over the tokens of a block in the update that begins it
        code  = x / scale         rounded to the nearest, ties to even, |code| <= c
        token = scale · code

    A block is `block` consecutive tokens of a sequence; keys and values, and every head, have
    scales of their own. Later updates of a block use its scale, and larger numbers saturate. So the
    tokens depend on where a prompt is cut, unless a block is one token. A scale of 0 gives 0.
    Numbers are finite. Scales are float32.

    `update` quantizes, and `attend` dequantizes in the kernel. `k_scale` and `v_scale`
    [P, page_size, G] are the scales of the rows of `k_pages` and `v_pages`; blocks need not begin
    where pages do. A view is float32. `attend` has no gradient.

    Args:
        batch: number of sequences B.
        num_pages, page_size: the pool.
        kv_heads, key_dim, value_dim: G, K and V.
        bits: dtype of the codes: int8 with c = 127, or float8_e4m3fn with c = 448.
        block: tokens that share a scale.
        k_scale, v_scale: one scale for all keys and one for all values, in place of those of
            blocks: finite float32 numbers >= 0.
        dtype: of the tokens given: float32, bfloat16 or float16.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv 2209.05433), section 3, for
    scaling and saturation; Liu et al., "KIVI" (arXiv 2402.02750) for scales per token.
    """

    _gathers = False

    def __init__(
        self, batch: int, num_pages: int, page_size: int, kv_heads: int, key_dim: int,
        value_dim: int, *, bits: torch.dtype = torch.int8, block: int = 1,
        k_scale: float | None = None, v_scale: float | None = None,
        dtype: torch.dtype = torch.float32, device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        if bits not in LARGEST:
            raise TypeError(f"bits: {bits}, expected torch.int8 or torch.float8_e4m3fn")
        if dtype not in FLOATS:
            raise TypeError(f"dtype: {dtype}, expected float32, bfloat16 or float16")
        for name, size in (
            ("batch", batch), ("num_pages", num_pages), ("page_size", page_size), ("block", block),
        ):  # fmt: skip
            check_size(name, size)
        if (k_scale is None) != (v_scale is None):
            raise ValueError("k_scale, v_scale: one is given, expected both or none")
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            _check_scale(name, scale)
        pool = num_pages, page_size, kv_heads
        k_pages, v_pages = allocate(*pool, key_dim, value_dim, dtype=bits, device=device)
        self._adopt(k_pages, v_pages, [[] for _ in range(batch)])
        self._dtype, self.block = dtype, block
        self._given = k_scale is not None
        with torch.inference_mode(False):
            self.k_scale, self.v_scale = (
                torch.empty(pool, dtype=torch.float32, device=device)
                if scale is None
                else torch.tensor(scale, dtype=torch.float32, device=device).expand(pool)
                for scale in (k_scale, v_scale)
            )

    @classmethod
    def from_pages(cls, *_: Any, **__: Any) -> "PagedCache":
        """A quantized cache begins empty."""
        raise NotImplementedError("from_pages: a quantized cache begins empty")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the keys and values that it takes."""
        return self._dtype

    def _scales(self) -> dict[str, Tensor]:
        return {"k_scale": self.k_scale, "v_scale": self.v_scale}

    def _stores(self) -> tuple[Tensor, ...]:
        scales = () if self._given else (self.k_scale, self.v_scale)
        return (self.k_pages, self.v_pages, *scales)

    def _check(self, k: Tensor, v: Tensor, offset: int | Tensor | None) -> Update:
        update = super()._check(k, v, offset)
        k_scale, v_scale = (
            self._scale(x.float(), scales, update)
            for x, scales in ((k, self.k_scale), (v, self.v_scale))
        )
        bits = self.k_pages.dtype
        return replace(
            update,
            k=_codes(k, k_scale, bits),
            v=_codes(v, v_scale, bits),
            scales=(k_scale, v_scale),
        )

    def _scale(self, x: Tensor, scales: Tensor, update: Update) -> Tensor:
        """The scale of each new token and head, float32 [B, T, G, 1]."""
        if self._given:
            return scales[:1, :1, :, None].expand(*x.shape[:3], 1)
        length, counts, _ = update.on_device
        token = torch.arange(x.shape[1], device=x.device)
        # Blocks are counted from the one that the first new token is in.
        block = (length[:, None] + token) // self.block - (length // self.block)[:, None]
        size = x.abs().amax(-1).where((token < counts[:, None])[..., None], 0.0)
        found = size.new_zeros(len(size), x.shape[1] // self.block + 2, size.shape[2])
        block = block[..., None].expand(size.shape)
        found = found.scatter_reduce(1, block, size, "amax")
        # A GPU multiplies by the reciprocal of a number, and divides by a tensor.
        found = found / found.new_tensor(LARGEST[self.k_pages.dtype])
        begin = length // self.block * self.block
        table = self._table()
        page = table.gather(1, (begin // self.page_size)[:, None].clamp(max=table.shape[1] - 1))
        held = scales[page[:, 0].clamp(min=0), begin % self.page_size]
        found[:, 0] = torch.where((begin < length)[:, None], held, found[:, 0])
        return found.gather(1, block)[..., None]

    def _attend(
        self,
        q: Tensor,
        update: Update,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        if attention is None:
            return super()._attend(q, update, None, options)
        # A view is float32, and an attention takes tensors of one dtype, and returns it.
        options = {n: x.float() if _is_in(q.dtype, x) else x for n, x in options.items()}
        o, lse = super()._attend(q.float(), update, attention, options)
        return o.to(q.dtype) if o.dtype == torch.float32 else o, lse

    def _view(self, update: Update) -> CacheView:
        codes = super()._view(update)
        scales = self._gather(
            update, *update.scales, self.k_scale[..., None], self.v_scale[..., None]
        )
        return codes._replace(k=codes.k.float() * scales.k, v=codes.v.float() * scales.v)

    def _write(self, update: Update) -> None:
        super()._write(update)
        if not self._given:
            length, counts, _ = update.on_device
            pages.append(
                *update.scales, self.k_scale[..., None], self.v_scale[..., None], self._table(),
                length, counts, self.ring,
            )  # fmt: skip


def _is_in(dtype: torch.dtype, option: Any) -> bool:
    return isinstance(option, Tensor) and option.dtype == dtype


def _check_scale(name: str, scale: float | None) -> None:
    """Refuse anything but None and a number that float32 has, at least 0."""
    if scale is None:
        return
    check_number(name, scale, optional=True)
    if not 0 <= scale <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name}: {scale}, expected a finite float32 number >= 0")


def _codes(x: Tensor, scale: Tensor, bits: torch.dtype) -> Tensor:
    """The codes of numbers of any float dtype; the quotient is float32 like the scale."""
    largest = LARGEST[bits]
    code = torch.where(scale == 0, 0.0, x / scale).clamp(-largest, largest)
    return (code.round() if bits == torch.int8 else code).to(bits)
