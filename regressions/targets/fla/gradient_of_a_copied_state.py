"""One token of zeros adds nothing to the state, and the output is the sum of its column."""

import torch
from fla.ops.generalized_delta_rule import fused_recurrent_iplr_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
q, k = torch.ones(1, 1, 1, 16, device=device), torch.zeros(1, 1, 1, 16, device=device)
state = torch.ones(1, 1, 16, 16, device=device, requires_grad=True)
for one in (state, state.transpose(-1, -2)):
    o, _ = fused_recurrent_iplr_delta_rule(q, k, k, k, k, scale=1.0, initial_state=one)
    state.grad = None
    o.sum().backward()
    gradients = state.grad
print("expected", 1.0)
print("got", 0.0 if gradients is None else gradients[0, 0, 0, 0].item())
