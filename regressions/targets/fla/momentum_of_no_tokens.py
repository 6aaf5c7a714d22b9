"""A momentum delta rule of no tokens is differentiated: there is nothing to do."""

import torch
from fla.ops.momentum_delta_rule import fused_recurrent_momentum_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 1, 16, device=device, requires_grad=True)
g = torch.zeros(1, 0, 1, device=device)
o, _ = fused_recurrent_momentum_delta_rule(x, x, x, g, g, use_qk_l2norm_in_kernel=False)
print("expected", tuple(x.shape))
try:
    o.sum().backward()
    print("got", tuple(x.grad.shape))
except RuntimeError as error:
    print("got", type(error).__name__)
