"""A call without tokens has nothing to rotate."""

import torch
from fla.modules.rotary import rotary_embedding

device = "cuda" if torch.cuda.is_available() else "cpu"
cos = sin = torch.ones(1, 8, device=device)
print("expected", (1, 0, 1, 16))
try:
    print("got", tuple(rotary_embedding(torch.ones(1, 0, 1, 16, device=device), cos, sin).shape))
except ZeroDivisionError as error:
    print("got", type(error).__name__)
