"""An activation that does not exist counts as no activation."""

import torch
from fla.modules.convolution import causal_conv1d

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.tensor([[[-1.0], [2.0]]], device=device)
print("expected an exception")
try:
    y, _ = causal_conv1d(x, torch.tensor([[0.0, 1.0]], device=device), activation="relu")
    print("got", y.flatten().tolist())
except Exception:
    print("got an exception")
