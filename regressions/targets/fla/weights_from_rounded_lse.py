"""Three keys with one logit, 2^20: the last row weighs each one third, its backward does not."""

import torch
from fla.ops.attn import parallel_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.full((1, 3, 1, 16), 256.0, device=device)
v = torch.zeros_like(q, requires_grad=True)
o = parallel_attn(q, q, v, scale=1.0)
(dv,) = torch.autograd.grad(o[:, 2].sum(), v)
print("expected", [0.33, 0.33, 0.33])
print("got", [round(x, 2) for x in dv[0, :, 0, 0].tolist()])
