"""The state after one token that adds nothing, differentiated by the state before it."""

import torch
from fla.ops.hgrn import chunk_hgrn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(1, 1, 16, device=device, requires_grad=True)
state = torch.ones(1, 16, device=device, requires_grad=True)
o, _ = chunk_hgrn(x, torch.zeros_like(x), initial_state=state)
o.sum().backward()
print("expected", 1.0)
print("got", state.grad if state.grad is None else state.grad[0, 0].item())
