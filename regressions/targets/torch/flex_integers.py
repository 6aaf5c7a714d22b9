"""Queries that are integers make an output of integers."""

import torch
from torch.nn.attention.flex_attention import flex_attention

v = torch.ones(1, 1, 2, 1)
print("expected an exception")
try:
    print("got", flex_attention(v.int(), v, v).dtype)
except Exception:
    print("got an exception")
