"""Token shift of two sequences, the first without tokens: its state passes through."""

import torch
from fla.modules.token_shift import token_shift

device = "cuda" if torch.cuda.is_available() else "cpu"
x, state = torch.ones(1, 1, 16, device=device), torch.full((2, 16), 2.0, device=device)
bounds = torch.tensor([0, 0, 1], device=device)
_, final = token_shift(x, bounds, cache=state, output_cache=True)
print("expected", [2.0, 1.0])
print("got", final[:, 0].tolist())
