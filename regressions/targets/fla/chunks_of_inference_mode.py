"""Training on boundaries with which the model was called in inference mode before."""

import torch
from fla.ops.simple_gla import parallel_simple_gla

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 2, 1, 16, device=device)
bounds = torch.tensor([0, 1, 2], device=device)
with torch.inference_mode():
    parallel_simple_gla(x, x, x, scale=1.0, cu_seqlens=bounds)
x.requires_grad_()
print("expected", [16.0, 16.0])
try:
    o, _ = parallel_simple_gla(x, x, x, scale=1.0, cu_seqlens=bounds)
    print("got", o[0, :, 0, 0].tolist())
except RuntimeError as error:
    print("got", str(error).partition(".")[0])
