"""One token: its value is what the slots hold."""

import torch
from fla.ops.gsa import chunk_gsa

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 1, 8, device=device, requires_grad=True)
print("expected", 1.0)
try:
    o, _ = chunk_gsa(x, x, x, x, 0 * x)
    o.sum().backward()
    print("got", o[0, 0, 0, 0].item())
except Exception as error:
    print("got", type(error).__name__)
