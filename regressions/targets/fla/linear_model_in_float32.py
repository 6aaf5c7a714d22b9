"""TTT-Linear in bfloat16 with a float32 layer norm: its gradient."""

import torch
from fla.ops.ttt import chunk_ttt_linear
from triton.compiler.errors import CompilationError

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(1, 1, 1, 16, device=device, dtype=torch.bfloat16)
w = torch.ones(1, 16, device=device, requires_grad=True)
o, _, _ = chunk_ttt_linear(x, x, x, w, w, x[..., :1])
print("expected", 1.0)
try:
    o.sum().backward()
    print("got", w.grad[0, 0].item())
except CompilationError as error:
    print("got", type(error).__name__)
