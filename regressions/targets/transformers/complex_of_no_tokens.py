"""A call without tokens has nothing to rotate."""

import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb

q = torch.ones(1, 1, 0, 2)
print("expected", tuple(q.shape))
try:
    print("got", tuple(apply_rotary_emb(q, q, torch.ones(1, 0, 1, dtype=torch.complex64))[0].shape))
except RuntimeError as error:
    print("got", type(error).__name__, str(error)[:37])
