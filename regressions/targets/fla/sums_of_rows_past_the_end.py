"""ABC with one token: its slots take all of it, whatever the logit of a slot is."""

import torch
from fla.ops.abc import chunk_abc

device = "cuda" if torch.cuda.is_available() else "cpu"
q = v = torch.ones(1, 1, 1, 16, device=device)
s = torch.full((1, 1, 1, 16), -200.0, device=device)
print("expected", 1.0)
print("got", round(chunk_abc(q, q, v, s)[0][0, 0, 0, 0].item(), 3))
