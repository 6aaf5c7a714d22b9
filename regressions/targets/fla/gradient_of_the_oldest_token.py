"""The final state of two taps is the last two tokens, and only one of them has a gradient."""

import torch
from fla.modules.convolution import causal_conv1d

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 2, 1, device=device, requires_grad=True)
weight = torch.ones(1, 2, device=device)
_, state = causal_conv1d(x, weight, output_final_state=True)
assert state.flatten().tolist() == x.flatten().tolist()
(dx,) = torch.autograd.grad(state.sum(), [x])
print("expected", [1.0, 1.0])
print("got", dx.flatten().tolist())
