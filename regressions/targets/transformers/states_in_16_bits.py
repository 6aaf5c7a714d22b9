"""A state of 80000 is read in float16: the output is infinite, though its value is 80."""

import torch
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

x, dt = torch.full((1, 1, 1), 40000.0).half(), torch.full((1, 1, 1), 2.0)
B, C = torch.ones(1, 1, 1).half(), torch.full((1, 1, 1), 0.001).half()
print("expected", round(40000 * 2 * C.item(), 2))
print("got", round(mamba_selective_scan(x, dt, torch.zeros(1, 1), B, C).item(), 2))
