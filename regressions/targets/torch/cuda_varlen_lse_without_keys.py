"""Two queries and one key, aligned at the bottom right: the first query sees nothing."""

import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

q, k = (torch.ones(n, 1, 64, dtype=torch.bfloat16, device="cuda") for n in (2, 1))
ends = (torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (2, 1))
causal = {"window_size": (-1, 0), "return_aux": AuxRequest(lse=True)}
o, lse = varlen_attn(q, k, k, *ends, 2, 1, **causal)
print("expected", -torch.inf)
print("got", lse.flatten()[0].item())
