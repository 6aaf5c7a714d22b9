"""A score_mod looks up what belongs to a query, in a call without queries."""

import warnings

import torch
from torch.nn.attention.flex_attention import flex_attention

warnings.simplefilter("ignore")
q, k, of_query = torch.ones(1, 1, 0, 4), torch.ones(1, 1, 3, 4), torch.zeros(0)
print("expected", (1, 1, 0, 4))
try:
    o = flex_attention(q, k, k, score_mod=lambda s, b, h, i, j: s + of_query[i])
    print("got", tuple(o.shape))
except IndexError as error:
    print("got", str(error))
