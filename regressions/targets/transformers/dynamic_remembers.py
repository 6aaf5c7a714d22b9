"""Dynamic NTK at 20 tokens, before and after a call with 64."""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
rotary = LlamaRotaryEmbedding(
    LlamaConfig(head_dim=8, max_position_embeddings=16, rope_parameters=dynamic)
)
tables = []
for tokens in (20, 64, 20):
    cos, _ = rotary(torch.zeros(1), torch.arange(tokens)[None])
    tables.append(cos[0, :20])
print("expected", True)
print("got", torch.equal(tables[0], tables[2]))
