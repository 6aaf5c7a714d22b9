"""Two keys with the same logit, 2^20, so the weights are one half: the backward's are not."""

import torch
from torch.nn.functional import scaled_dot_product_attention

q, k = torch.full((1, 1, 1, 1), 1024.0), torch.full((1, 1, 2, 1), 1024.0)
v = torch.zeros(1, 1, 2, 1, requires_grad=True)
o = scaled_dot_product_attention(q, k, v, scale=1.0)
(dv,) = torch.autograd.grad(o.sum(), v)
print("expected", [0.5, 0.5])
print("got", [round(x, 2) for x in dv.flatten().tolist()])
