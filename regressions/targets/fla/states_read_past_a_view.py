"""RWKV-4 saves a view of its states without the last, and its backward pass reads that as well."""

import torch
from fla.ops.rwkv4 import fused_recurrent_rwkv4
from torch.autograd.graph import save_on_cpu

device = "cuda" if torch.cuda.is_available() else "cpu"
w, u, state = (torch.zeros(n, device=device) for n in ((16,), (16,), (1, 3, 1, 16)))
k = torch.zeros(1, 1, 16, device=device)
v = torch.ones_like(k).requires_grad_()
with save_on_cpu():
    _, final = fused_recurrent_rwkv4(w, u, k, v, state)
print("expected", 1.0)
try:
    final[:, 0].sum().backward()
    print("got", v.grad[0, 0, 0].item())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
