"""The oracle of latent caches, by hand and against one pass over all tokens."""

import math

import torch

from reference import LatentCache, mla
from reference.testing import draw, rows


def test_two_tokens_by_hand() -> None:
    """Logits of the second token are 0 and log 3; values are twice the latents 4 and 8."""
    cache = LatentCache(1)
    w_uk = w_uv = rows(2).view(1, 1, 1)
    q_n, q_r = rows(0).view(1, 1, 1, 1), rows(1).view(1, 1, 1, 1)
    first = cache.attend(q_n, q_r, q_n + 4, 0 * q_r, w_uk, w_uv, scale=1.0)[0]
    assert first.item() == 8
    o, lse = cache.attend(
        q_n, q_r, q_n + 8, q_r * math.log(3), w_uk, w_uv, scale=1.0, return_lse=True
    )
    torch.testing.assert_close(o.item(), (1 * 8 + 3 * 16) / 4)
    assert lse is not None
    torch.testing.assert_close(lse.item(), math.log(4))


def test_decoding_token_by_token_equals_one_full_pass() -> None:
    q_n, q_r = draw(0, 2, 5, 3, 4), draw(1, 2, 5, 3, 2)
    c, k_r = draw(2, 2, 5, 1, 6), draw(3, 2, 5, 1, 2)
    w_uk, w_uv = draw(4, 3, 4, 6), draw(5, 3, 7, 6)
    want, _ = mla(q_n, q_r, c[:, :, 0], k_r[:, :, 0], w_uk, w_uv, causal=True)
    cache = LatentCache(2)
    steps = []
    for t in range(5):
        a, b, latent, key = (x[:, t : t + 1] for x in (q_n, q_r, c, k_r))
        steps.append(cache.attend(a, b, latent, key, w_uk, w_uv)[0])
    torch.testing.assert_close(torch.cat(steps, 1), want, rtol=1e-12, atol=1e-12)
