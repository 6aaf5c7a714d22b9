"""Cyclic flow attention of no tokens is differentiated: there is nothing to do."""

import torch
from fla.ops.cyfa import chunk_cyfa

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 1, 16, device=device, requires_grad=True)
g, readout, w = (
    torch.zeros(1, 0, 1, device=device),
    torch.eye(15, device=device)[None],
    x.new_ones(16),
)
print("expected", tuple(x.shape))
try:
    o, _ = chunk_cyfa(x, x, x, g, g, g, readout, w, w, 1e-6, 1e-6)
    o.sum().backward()
    print("got", tuple(x.grad.shape))
except ZeroDivisionError as error:
    print("got", type(error).__name__)
