"""FlexAttention without torch.compile, and without a key: a row that sees none is 0."""

import torch
from torch.nn.attention.flex_attention import flex_attention

q = torch.ones(1, 1, 1, 2)
keys = torch.ones(1, 1, 0, 2)
print("expected", [0.0, 0.0])
try:
    print("got", flex_attention(q, keys, keys).flatten().tolist())
except IndexError as error:
    print("got", error)
