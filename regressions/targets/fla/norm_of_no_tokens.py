"""The gradient of a gated norm of no tokens."""

import torch
from fla.modules.fused_norm_gate import rms_norm_gated

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 1, 16, device=device, requires_grad=True)
w = torch.ones(16, device=device)
print("expected", (1, 0, 1, 16))
try:
    rms_norm_gated(x, x, w, None).sum().backward()
    print("got", tuple(x.grad.shape))
except ZeroDivisionError as error:
    print("got", type(error).__name__)
