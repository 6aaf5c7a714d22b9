"""A batch of no sequences, in which a dim of -1 may be any number of chunks."""

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

x = torch.ones(0, 1, 1, 2)
print("expected", tuple(x.shape))
try:
    o, _ = torch_chunk_gated_delta_rule(x, x, x, x[..., 0], x[..., 0])
    print("got", tuple(o.shape))
except RuntimeError as error:
    print("got", type(error).__name__, str(error)[:35])
