"""Normalized linear attention squares the normalizer in the dtype of the queries."""

import torch
from fla.ops.linear_attn import fused_recurrent_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
# The second row is q_1 / (q_0 + q_1), whatever the length of the keys; 1024² is more than 65504.
k, v = (torch.zeros(1, 2, 1, 16, dtype=torch.float16, device=device) for _ in "kv")
k[0, 0, 0, 0] = k[0, 1, 0, 1] = 512.0
v[0, 1] = 1.0
q = torch.ones_like(k).requires_grad_()
o, _ = fused_recurrent_linear_attn(q, k, v, scale=1.0, normalize=True)
(dq,) = torch.autograd.grad(o[0, 1, 0, 0], q)
print("expected", [-0.25, 0.25])
print("got", dq[0, 1, 0, :2].tolist())
