"""MesaNet reads a float32 state in float16: it was rounded to bfloat16 before."""

import torch
from fla.ops.mesa_net import chunk_mesa_net

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.zeros(1, 1, 1, 16, device=device, dtype=torch.float16)
k, g, beta = q.clone(), *torch.zeros(2, 1, 1, 1, device=device)
lamb, state = torch.ones(1, 16, device=device), torch.eye(16, device=device)[None, None]
q[..., 0] = 1
o, _, _ = chunk_mesa_net(q, k, k, g, beta, lamb, 0 * state, (1 + 2**-9) * state)
print("expected", 1 + 2**-9)
print("got", o[0, 0, 0, 0].item())
