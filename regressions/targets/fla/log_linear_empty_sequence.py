"""Log-linear attention of two sequences, the first without tokens."""

import torch
from fla.ops.log_linear_attn import chunk_log_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q, v = torch.ones(1, 1, 1, 64, device=device), torch.ones(1, 1, 1, 16, device=device)
v.requires_grad_()
g, scales = torch.zeros(1, 1, 1, device=device), torch.ones(1, 1, 1, 1, device=device)
bounds = torch.tensor([0, 0, 1], device=device)
print("expected", 64.0)
try:
    chunk_log_linear_attn(q, q, v, g, scales, cu_seqlens=bounds)[0].sum().backward()
    print("got", v.grad[0, 0, 0, 0].item())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
