"""Boundaries that end before the tokens: the rest is whatever was in memory."""

import torch
from fla.ops.simple_gla import chunk_simple_gla

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.ones(1, 3, 1, 16, device=device)
print("expected an exception")
try:
    o, _ = chunk_simple_gla(q, q, q, cu_seqlens=torch.tensor([0, 2], device=device))
    print("got", tuple(o.shape))
except Exception:
    print("got an exception")
