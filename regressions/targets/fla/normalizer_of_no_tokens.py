"""A call without tokens hands on the state that it was given, both parts of it."""

import torch
from fla.ops.linear_attn import chunk_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 1, 16, device=device)
before = torch.ones(1, 1, 16, 16, device=device), torch.ones(1, 1, 1, 16, device=device)
_, after = chunk_linear_attn(x, x, x, initial_state=before, output_final_state=True, normalize=True)
print("expected", tuple(before[1].shape))
print("got", tuple(after[1].shape))
