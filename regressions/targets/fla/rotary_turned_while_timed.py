"""A quarter turn in place, in the first call; a GPU turns by hundreds of quarters."""

import torch
from fla.modules.rotary import rotary_embedding

device = "cuda" if torch.cuda.is_available() else "cpu"
cos, sin = torch.zeros(1, 1, device=device), torch.ones(1, 1, device=device)
x = torch.tensor([1.0, 0.0], device=device).view(1, 1, 1, 2)
y = rotary_embedding(x, cos, sin, inplace=True)
print("expected", [0.0, 1.0])
print("got", y.flatten().tolist())
