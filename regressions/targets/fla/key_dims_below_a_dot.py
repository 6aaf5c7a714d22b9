"""A query, a key and a value of eight ones each: the output is 8."""

import torch
from fla.ops.kda import chunk_kda

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.ones(1, 1, 1, 8, device=device)
print("expected", 8.0)
try:
    o, _ = chunk_kda(k, k, k, 0 * k, k[..., 0], scale=1.0, safe_gate=True)
    print("got", o[0, 0, 0, 0].item())
except Exception as error:
    print("got", type(error).__name__)
