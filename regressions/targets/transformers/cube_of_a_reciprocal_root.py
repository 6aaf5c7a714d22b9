"""The gradient of a row of zeros, beside an epsilon of 1e-30, is NaN; it is that of 1e15 x."""

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

x = torch.zeros(1, 1, requires_grad=True)
norm = Qwen3NextRMSNormGated(1, eps=1e-30)
norm(x, torch.ones(1, 1)).sum().backward()
print("expected", f"{torch.nn.functional.silu(torch.ones(())).item() * 1e15:.4g}")
print("got", f"{x.grad.item():.4g}")
