"""Nested attention of one token each, behind other rows of a tensor: gradients go astray."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention

x = torch.ones(2, 2, 1, requires_grad=True)
n = nested_tensor_from_jagged(x, torch.tensor([0, 1, 2])).transpose(1, 2)
o = scaled_dot_product_attention(n, n, n).transpose(1, 2).values()
rows = torch.cat([torch.zeros(2, 2, 1), o])
(rows * torch.tensor([1.0, 3.0, 5.0, 7.0]).view(4, 1, 1)).sum().backward()
print("expected", [5.0, 5.0, 7.0, 7.0])
print("got", x.grad.flatten().tolist())
