"""In float16 chunks store their states as they store keys, and a sum above 65504 is inf."""

import torch
from fla.ops.simple_gla import chunk_simple_gla

device = "cuda" if torch.cuda.is_available() else "cpu"
# The state grows by 2^16 a token, and a query of 2^-8 reads 256 of each.
k, v = (torch.zeros(1, 65, 1, 16, dtype=torch.float16, device=device) for _ in "kv")
k[..., 0] = v[..., 0] = 256.0
o, _ = chunk_simple_gla(k / 2**16, k, v, scale=1.0)
print("expected", 256.0 * 65)
print("got", o[0, -1, 0, 0].item())
