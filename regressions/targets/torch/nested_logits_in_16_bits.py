"""Two logits, 257 and 256: bfloat16 does not tell them apart, and softmax does."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention


def nested(x):
    bounds = torch.tensor([0, len(x)])
    return nested_tensor_from_jagged(torch.tensor(x).bfloat16()[:, None], bounds).transpose(1, 2)


q, k, v = nested([[16.0, 1.0]]), nested([[16.0, 1.0], [16.0, 0.0]]), nested([[1.0], [0.0]])
o = scaled_dot_product_attention(q, k, v, scale=1.0)
print("expected", round(torch.sigmoid(torch.tensor(1.0)).item(), 1))
print("got", round(o.values().item(), 1))
