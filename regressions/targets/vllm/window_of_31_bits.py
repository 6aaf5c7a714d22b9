"""A query that sees one key returns its value, however wide the window is."""

import torch
from vllm.v1.attention.ops.triton_prefill_attention import context_attention_fwd

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 16, dtype=torch.bfloat16, device=device)
o, start = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=device)
most = 2**31 - 1
context_attention_fwd(x, x, x, o, start, start + 1, 1, sliding_window_q=most, sliding_window_k=most)
print("expected", 1.0)
print("got", o[0, 0, 0].item())
