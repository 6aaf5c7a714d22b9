"""Log-linear attention in float16 without keys and values, whose gradients are 0."""

import torch
from fla.ops.log_linear_attn import chunk_log_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
given = {"device": device, "dtype": torch.float16}
q = torch.full((1, 65, 1, 64), 1000.0, **given)
k = torch.zeros(1, 65, 1, 64, requires_grad=True, **given)
v, g = torch.zeros(1, 65, 1, 16, **given), torch.zeros(1, 65, 1, device=device)
o, _ = chunk_log_linear_attn(q, k, v, g, torch.ones(1, 65, 1, 8, **given), scale=1.0)
(100 * o).sum().backward()
print("expected", 0.0)
print("got", k.grad[0, 0, 0, 0].item())
