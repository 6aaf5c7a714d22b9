"""MesaNet without keys, where o = q: a loss that is 1e-4 as large has such a gradient too."""

import torch
from fla.ops.mesa_net import chunk_mesa_net

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.zeros(1, 1, 1, 16, device=device, dtype=torch.bfloat16)
k, g, beta = q.clone(), *torch.zeros(2, 1, 1, 1, device=device)
lamb, state = torch.ones(1, 16, device=device), torch.eye(16, device=device)[None, None]
q[..., 0] = 1
q.requires_grad_()
o, _, _ = chunk_mesa_net(q, k, k, g, beta, lamb, 0 * state, state)
(1e-4 * o[..., 0]).sum().backward()
print("expected", 1e-4)
print("got", round(q.grad[0, 0, 0, 0].item(), 6))
