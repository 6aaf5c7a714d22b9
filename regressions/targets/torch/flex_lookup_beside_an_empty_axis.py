"""FlexAttention of an empty batch, with a bias for each of its elements."""

import torch
from torch.nn.attention.flex_attention import flex_attention

q, bias = torch.ones(0, 1, 2, 4), torch.zeros(0, 2, 2)
print("expected", (0, 1, 2, 4))
try:
    o = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[b, i, j])
    print("got", tuple(o.shape))
except IndexError as error:
    print("got", error)
