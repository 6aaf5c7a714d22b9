"""Dynamic NTK at exactly the original length, after a longer call: it is the plain rotation."""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
rotary = LlamaRotaryEmbedding(
    LlamaConfig(head_dim=8, max_position_embeddings=16, rope_parameters=dynamic)
)
tables = []
for tokens in (16, 64, 16):
    cos, _ = rotary(torch.zeros(1), torch.arange(tokens)[None])
    tables.append(cos[0, :16])
print("expected", True)
print("got", torch.equal(tables[0], tables[2]))
