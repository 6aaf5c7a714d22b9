"""The final state of a recurrence of one token is differentiated by that token."""

import torch
from fla.ops.hgrn import chunk_hgrn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 16, device=device, requires_grad=True)
_, state = chunk_hgrn(x, torch.zeros_like(x), output_final_state=True)
print("expected", 1.0)
(gradient,) = torch.autograd.grad(state.sum(), x, allow_unused=True)
print("got", 0.0 if gradient is None else gradient[0, 0, 0].item())
