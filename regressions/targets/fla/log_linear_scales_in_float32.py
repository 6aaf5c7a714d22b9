"""Log-linear attention in bfloat16 with float32 level scales."""

import torch
from fla.ops.log_linear_attn import chunk_log_linear_attn
from triton.compiler.errors import CompilationError

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.full((1, 1, 1, 64), 0.5, device=device, dtype=torch.bfloat16)
v = torch.ones(1, 1, 1, 16, device=device, dtype=torch.bfloat16)
g, scales = torch.zeros(1, 1, 1, device=device), torch.ones(1, 1, 1, 1, device=device)
print("expected", 16.0)
try:
    print("got", chunk_log_linear_attn(q, q, v, g, scales)[0][0, 0, 0, 0].item())
except CompilationError as error:
    print("got", type(error).__name__)
