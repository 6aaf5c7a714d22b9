"""A decay between neighbours gets the rounding errors of the sum of all gates before them."""

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

g = torch.tensor([-40000.0, -0.01, -0.01, -0.01]).view(1, 4, 1)
x = torch.ones(1, 4, 1, 1)
beta = torch.tensor([0.0, 1, 0, 0]).view(1, 4, 1)
print("expected", round((g[0, 2, 0] + g[0, 3, 0]).exp().item(), 4))
print("got", round(torch_chunk_gated_delta_rule(x, x, x, g, beta)[0][0, 3, 0, 0].item(), 4))
