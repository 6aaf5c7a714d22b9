"""The LSE of a batch of none is asked for, and is None."""

import warnings

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

warnings.simplefilter("ignore")
q, k = torch.ones(0, 1, 2, 4), torch.ones(0, 1, 3, 4)
o, more = flex_attention(q, k, k, return_aux=AuxRequest(lse=True))
print("expected", (0, 1, 2))
print("got", more.lse if more.lse is None else tuple(more.lse.shape))
