"""TTT-Linear of no tokens."""

import torch
from fla.ops.ttt import chunk_ttt_linear

device = "cuda" if torch.cuda.is_available() else "cpu"
x, w = torch.ones(1, 0, 1, 16, device=device), torch.ones(1, 16, device=device)
print("expected", (1, 0, 1, 16))
try:
    print("got", tuple(chunk_ttt_linear(x, x, x, w, w, x[..., :1])[0].shape))
except RuntimeError as error:
    print("got", type(error).__name__)
