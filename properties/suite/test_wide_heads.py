"""Heads above 256: latent attention in its absorbed form, whose values lie in the keys."""

from typing import Any

import pytest
import torch

import kernels
import reference
from properties.laws import Subject


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("latent", [512, 96])
def test_values_may_be_the_first_columns_of_the_keys(
    latent: int, dtype: torch.dtype, subject: Subject
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 5, heads, latent + 64, generator=generator) for heads in (4, 1))
    do = torch.randn(2, 5, 4, latent, generator=generator).to(subject.device, dtype)
    q, k = (x.to(subject.device, dtype).requires_grad_() for x in (q, k))
    o, _ = kernels.attention(q, k, k[..., :latent], causal=True)
    dq, dk = torch.autograd.grad(o, (q, k), do)
    v = k[..., :latent].detach().clone().requires_grad_()
    want, _ = kernels.attention(q, k, v, causal=True)
    want_dq, want_dk, want_dv = torch.autograd.grad(want, (q, k, v), do)
    assert torch.equal(o, want)
    assert torch.equal(dq, want_dq)
    assert torch.equal(dk, want_dk + torch.nn.functional.pad(want_dv, (0, 64)))


def test_the_absorbed_form_is_latent_attention(subject: Subject) -> None:
    generator = torch.Generator().manual_seed(1)
    H, K, D, V, R = 3, 16, 64, 24, 512
    shapes = ((1, 3, H, K), (1, 3, H, D), (1, 9, R), (1, 9, D), (H, K, R), (H, V, R))
    given = [torch.randn(shape, generator=generator) / shape[-1] ** 0.25 for shape in shapes]
    want, _ = reference.mla(*(x.double() for x in given), causal=True)
    q_n, q_r, c, k_r, w_uk, w_uv = (x.to(subject.device) for x in given)
    q = torch.cat([torch.einsum("bthk,hkr->bthr", q_n, w_uk), q_r], -1)
    k = torch.cat([c, k_r], -1)[:, :, None]
    of_latents, _ = kernels.attention(q, k, k[..., :R], scale=(K + D) ** -0.5, causal=True)
    got = torch.einsum("bthr,hvr->bthv", of_latents, w_uv)
    # Sums of 512 products, twice one after the other, of numbers up to some 30.
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-3)


def test_latent_attention_takes_them(subject: Subject) -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = ((1, 3, 2, 512), (1, 3, 2, 64), (1, 9, 40), (1, 9, 64), (2, 512, 40), (2, 300, 40))
    given = [torch.randn(shape, generator=generator) / shape[-1] ** 0.25 for shape in shapes]
    want, _ = reference.mla(*(x.double() for x in given), causal=True)
    got, _ = kernels.mla(*(x.to(subject.device) for x in given), causal=True)
    # Logits of some ten, sums of 576 products of sums of 40.
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("dims", "more", "message"),
    [
        ((577, 8), {}, "head dim K of q: 577, expected 1 to 576"),
        ((8, 513), {}, "head dim V of v: 513, expected 1 to 512"),
        ((257, 8), {"bias": torch.zeros(1, 1, 1, 1)}, "bias: given with head dims K=257 and V=8"),
        ((8, 257), {"g": torch.zeros(1, 3, 2), "causal": True}, "g: given with head dims K=8"),
    ],
)
def test_limits_are_stated(dims: tuple[int, int], more: dict[str, Any], message: str) -> None:
    q, v = torch.zeros(1, 3, 2, dims[0]), torch.zeros(1, 3, 2, dims[1])
    with pytest.raises(ValueError, match=message):
        kernels.attention(q, q, v, **more)
