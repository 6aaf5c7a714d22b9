"""A gate of -inf forgets everything, and what is written after it is 1; every output is NaN."""

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

x, beta = torch.ones(1, 2, 1, 1), torch.ones(1, 2, 1)
g = torch.tensor([0.0, -torch.inf]).view(1, 2, 1)
print("expected", [1.0, 1.0])
print("got", torch_chunk_gated_delta_rule(x, x, x, g, beta)[0].flatten().tolist())
