"""Nested attention of no sequences."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention

x = nested_tensor_from_jagged(torch.ones(0, 2, 4), torch.tensor([0])).transpose(1, 2)
print("expected", (0, 2, 4))
try:
    o = scaled_dot_product_attention(x, x, x)
    print("got", (o.shape[0], o.shape[1], o.shape[3]))
except IndexError as error:
    print("got", error)
