"""A scale of 0 and slopes of 0 weigh all values, of ones, alike."""

import torch
from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 16, dtype=torch.bfloat16, device=device)
k, v = x.new_ones(1, 1, 2, 16, 8), x.new_ones(1, 1, 16, 16)
table = torch.zeros(1, 8, dtype=torch.int32, device=device)
start = table[0, :1]
ends, one, o = torch.cat([start, start + 1]), torch.ones(1, device=device), torch.empty_like(x)
sequences = table, ends, start + 2, 2, 1
context_attention_fwd(x, x, x, o, "auto", k, v, *sequences, one, one, 0 * one, sm_scale=0.0)
print("expected", 1.0)
print("got", o[0, 0, 0].item())
