"""A logit of 17 * 17 = 289, which is the LSE of its row: bfloat16 rounds the product to 288."""

import torch
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.eye(1, 16, dtype=torch.bfloat16, device=device).view(1, 1, 16) * 17
pages, o, lse = q.view(1, 1, 1, 16), torch.empty_like(q), torch.empty(1, 1, device=device)
table, length = torch.zeros(2, 1, 1, dtype=torch.int32, device=device)
parts = torch.empty(1, 1, 1, 17, device=device)
decode_attention_fwd(q, pages, pages, o, lse, table, length + 1, parts, 1, 1.0, 1, 0.0)
print("expected", 289.0)
print("got", lse.item())
