"""The gradient of a value that 512 query heads read: 1 from each."""

import torch
from torch.nn.functional import scaled_dot_product_attention

q = torch.zeros(1, 512, 1, 8, dtype=torch.bfloat16)
k, v = torch.zeros(2, 1, 1, 1, 8, dtype=torch.bfloat16).requires_grad_()
o = scaled_dot_product_attention(q, k, v, enable_gqa=True)
(dv,) = torch.autograd.grad(o.sum(), v)
print("expected", 512.0)
print("got", dv[0, 0, 0, 0].item())
