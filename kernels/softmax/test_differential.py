"""The gradients of differential attention where λ must not be rounded into a cotangent."""

import torch

from kernels import differential_attention


def test_products_that_cancel_are_0_times_lambda(device: torch.device) -> None:
    def tensor(*rows: list[float]) -> torch.Tensor:
        return torch.tensor(rows, device=device, dtype=torch.bfloat16)[None, :, None]

    q, k = tensor([1.0]).requires_grad_(), tensor([1.0], [2.0]).requires_grad_()
    # do · v is a b - b a, of two numbers of eight bits. Rounded, λ a and λ b are not in proportion.
    v, do = tensor([1.0, -1.0078125], [0.0, 0.0]), tensor([1.0078125, 1.0])
    lam = torch.tensor([0.7], device=device)
    o = differential_attention(q.detach(), k.detach(), q, k, v, lam)
    for gradient in torch.autograd.grad(o, [q, k], do):
        assert gradient.abs().max() < 1e-6


def test_logits_may_have_gradients_past_float16(device: torch.device) -> None:
    def gradient(dtype: torch.dtype) -> torch.Tensor:
        q = torch.zeros(1, 1, 1, 1, device=device, dtype=dtype, requires_grad=True)
        k = torch.tensor([2.0**-10, 0.0], device=device, dtype=dtype).view(1, 2, 1, 1)
        o = differential_attention(
            q.detach(), k, q, k, 1024 * k, torch.tensor([100.0], device=device)
        )
        (dq2,) = torch.autograd.grad(o, [q], torch.full_like(o, 30000.0))
        return dq2

    # dS = 100 · 30000 / 4, and dq2 is that / 1024.
    torch.testing.assert_close(
        gradient(torch.float16).float(), gradient(torch.float32), rtol=1e-3, atol=0.0
    )
