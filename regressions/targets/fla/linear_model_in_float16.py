"""A model of large weights, a query of small numbers: the output is 1024, and its norm 1."""

import torch
from fla.ops.ttt import chunk_ttt_linear

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.zeros(1, 1, 1, 16, device=device, dtype=torch.float16)
w, b = torch.ones_like(k[0, 0]), torch.zeros_like(k[0, 0])
model = torch.full((1, 1, 16, 16), 2.0**16, device=device)
model[..., ::2] *= -1
o, *_ = chunk_ttt_linear(k + 2.0**-10, k, k, w, b, k[..., :1], scale=1.0, initial_state=model)
print("expected", 1025.0)
print("got", o[0, 0, 0, 1].item())
