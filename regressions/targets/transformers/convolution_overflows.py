"""SiLU of -90000 is -0; in float16 the convolution is -inf before SiLU, and NaN after it."""

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import causal_conv1d_fn

x, weight = torch.full((1, 1, 1), -300.0).half(), torch.full((1, 1), 300.0).half()
print("expected", -0.0)
print("got", causal_conv1d_fn(x, weight, activation="silu").item())
