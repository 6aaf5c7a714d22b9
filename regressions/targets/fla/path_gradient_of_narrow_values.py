"""Path attention with 32 dims of keys and 16 of values: the gradients of two heads' values."""

import torch
from fla.ops.path_attn import parallel_path_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q = k = torch.zeros(1, 257, 2, 32, device=device)
v = torch.zeros(1, 257, 2, 16, device=device, requires_grad=True)
beta = torch.zeros(1, 257, 2, device=device)
o, _ = parallel_path_attn(q, k, v, k, beta, scale=1.0)
print("expected", [16.0, 16.0])  # the last token attends to all, each with a weight of 1/257
try:
    o[:, -1].sum().backward()
    print("got", [round(x, 1) for x in v.grad.sum((0, 1, 3)).tolist()])
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
