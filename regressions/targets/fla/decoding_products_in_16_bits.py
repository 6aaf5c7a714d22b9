"""Two logits, 17 * 17 and 17 * 16 + 16: float32 tells them apart, and bfloat16 does not."""

import torch
from fla.ops.attn.decoding import attn_decoding_one_step

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = torch.tensor([[17, 1], [17, 0], [16, 16]], device=device).bfloat16()[None, :, None]
q, k = rows.split([1, 2], 1)
bounds = torch.tensor([0, 2], device=device)
o = attn_decoding_one_step(q, k, k, scale=1.0, cu_seqlens=bounds)
print("expected", 16.75)
print("got", o[0, 0, 0, 0].item())
