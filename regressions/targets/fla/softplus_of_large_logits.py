"""Stick-breaking attention of a token to itself with a logit of 10.5."""

import torch
from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.full((1, 1, 1, 16), 10.5**0.5 / 4, device=device)
one = torch.ones(1, 1, 1, 16, device=device)
o, rest = parallel_stickbreaking_attn(x, x, one, scale=1.0, attend_current=True)
print("expected", round(torch.sigmoid(torch.tensor(10.5)).item(), 6))
print("got", round(o[0, 0, 0, 0].item(), 6))
