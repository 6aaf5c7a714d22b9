"""Log-linear attention of no tokens."""

import torch
from fla.ops.log_linear_attn import chunk_log_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q, v = torch.ones(1, 0, 1, 64, device=device), torch.ones(1, 0, 1, 16, device=device)
g, scales = torch.zeros(1, 0, 1, device=device), torch.ones(1, 0, 1, 1, device=device)
print("expected", (1, 0, 1, 16))
try:
    print("got", tuple(chunk_log_linear_attn(q, q, v, g, scales)[0].shape))
except ValueError as error:
    print("got", type(error).__name__)
