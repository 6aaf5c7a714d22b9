"""Attention residuals: two equal sources whose logits are 1e6."""

import torch
from fla.ops.attnres import fused_attnres

device = "cuda" if torch.cuda.is_available() else "cpu"
x = [torch.ones(1, 16, device=device, requires_grad=True) for _ in range(2)]
query, weight = torch.full((16,), 1e6 / 16, device=device), torch.ones(16, device=device)
o, p = fused_attnres(query, x, weight, rms_eps=1e-30, return_weights=True)
o.sum().backward()
print("expected", [0.5, 0.5])
print("got", [round(p[0].item(), 4), round(x[0].grad[0, 0].item(), 4)])
