"""The gradient of attention to three blocks of keys, where one token sees one of them."""

import torch
import triton
from fla.ops.nsa import parallel_nsa

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.ones(1, 1, 16, 16, device=device)
k = torch.ones(1, 1, 1, 16, device=device)
v = torch.ones(1, 1, 1, 16, device=device, requires_grad=True)
blocks = torch.tensor([[[[0, -1, -1]]]], device=device)
print("expected", 1.0)
try:
    o = parallel_nsa(q, k, v, block_indices=blocks, block_size=16)
    (o[0] if isinstance(o, tuple) else o)[..., 0].mean().backward()
    print("got", v.grad[0, 0, 0, 0].item())
except triton.CompilationError as error:
    print("got", type(error).__name__)
