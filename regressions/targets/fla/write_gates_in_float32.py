"""GDN-2 in bfloat16 with float32 write gates: the forward pass takes them."""

import torch
from fla.ops.gdn2 import chunk_gdn2
from triton.compiler.errors import CompilationError

device = "cuda" if torch.cuda.is_available() else "cpu"
q, v = torch.zeros(2, 1, 1, 1, 16, device=device, dtype=torch.bfloat16)
q[..., 0] = 1
g, b, w = (q.float() * 0, q, torch.ones(1, 1, 1, 16, device=device))
v.requires_grad_()
o, _ = chunk_gdn2(q, q, v, g, b, w, scale=1.0)
print("expected", 1.0)
try:
    o[..., 0].sum().backward()
    print("got", v.grad[0, 0, 0, 0].item())
except CompilationError as error:
    print("got", type(error).__name__)
