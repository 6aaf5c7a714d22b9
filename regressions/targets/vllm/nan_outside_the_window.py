"""A window of one key leaves out the NaN before it."""

import torch
from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 16, dtype=torch.bfloat16, device=device)
k, v = x.new_ones(1, 1, 2, 16, 8), x.new_ones(1, 1, 16, 16)
v[..., 0] = torch.nan
table, start = torch.zeros(2, 1, 1, dtype=torch.int32, device=device)
ends, one, o = torch.cat([start, start + 1]), torch.ones(1, device=device), torch.empty_like(x)
sequences = table, ends, start + 2, 2, 1
chunked_prefill_paged_decode(x, x, x, o, "auto", k, v, *sequences, one, one, sliding_window=1)
print("expected", 1.0)
print("got", o[0, 0, 0].item())
