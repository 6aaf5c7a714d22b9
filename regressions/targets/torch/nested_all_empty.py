"""Nested attention where every sequence is empty."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention

x = nested_tensor_from_jagged(torch.ones(0, 1, 1), torch.tensor([0, 0])).transpose(1, 2)
print("expected", [])
try:
    print("got", scaled_dot_product_attention(x, x, x).values().flatten().tolist())
except RuntimeError as error:
    print("got", error)
