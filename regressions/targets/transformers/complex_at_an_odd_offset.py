"""Queries that are a slice at an odd offset, as where a head has an odd part that does not turn."""

import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb

heads = torch.ones(1, 1, 1, 3)
turning = heads[..., 1:]
print("expected", [0.0, 2.0])
try:
    q, _ = apply_rotary_emb(turning, turning, torch.full((1, 1, 1), 1 + 1j))
    print("got", q.flatten().tolist())
except RuntimeError as error:
    print("got", error)
