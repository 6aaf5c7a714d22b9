"""Two packed sequences of 3 tokens need 3 rows of the tables."""

import torch
from fla.modules.rotary import rotary_embedding

device = "cuda" if torch.cuda.is_available() else "cpu"
cos = sin = torch.ones(3, 8, device=device)
x, ends = torch.ones(1, 6, 1, 16, device=device), torch.tensor([0, 3, 6], device=device)
print("expected", (1, 6, 1, 16))
try:
    print("got", tuple(rotary_embedding(x, cos, sin, cu_seqlens=ends).shape))
except AssertionError as error:
    print("got", type(error).__name__)
