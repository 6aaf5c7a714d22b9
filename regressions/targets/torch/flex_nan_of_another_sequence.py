"""Two packed sequences of one token each, the second NaN: the first is a NaN too."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

q = torch.ones(1, 1, 2, 1)
v = torch.tensor([1.0, torch.nan]).view(1, 1, 2, 1)
own = create_block_mask(lambda b, h, i, j: i == j, None, None, 2, 2, device="cpu")
print("expected", [1.0, torch.nan])
print("got", flex_attention(q, q, v, block_mask=own).flatten().tolist())
