"""One token whose key is its value: the loss is that of the bias, and so is its gradient."""

import torch
from fla.ops.ttt import chunk_ttt_linear

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(1, 1, 1, 16, device=device)
w, b = torch.ones(1, 16, device=device), torch.ones(1, 16, device=device)
b[:, ::2] = -1
eta = torch.full((1, 1, 1, 1), 0.5, device=device)
_, _, bias = chunk_ttt_linear(x, x, x, w, b, eta, eps=1.0, output_final_state=True)
print("expected", 0.5)
print("got", round(bias[0, 0, 0, 0].item(), 3))
