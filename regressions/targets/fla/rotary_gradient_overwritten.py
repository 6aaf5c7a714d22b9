"""A quarter turn in place beside a residual: both terms of the sum have the gradient [1, 0]."""

import torch
from fla.modules.rotary import rotary_embedding

device = "cuda" if torch.cuda.is_available() else "cpu"
cos, sin = torch.zeros(1, 1, device=device), torch.ones(1, 1, device=device)
x = torch.ones(1, 1, 1, 2, device=device, requires_grad=True)
residual = 1 * x
y = rotary_embedding(x.clone(), cos, sin, inplace=True) + residual
y.backward(torch.tensor([1.0, 0.0], device=device).view_as(y))
print("expected", [1.0, -1.0])
print("got", x.grad.flatten().tolist())
