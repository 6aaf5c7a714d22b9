"""Lightning attention of one token: head 1 forgets, and its state after the token is k v = 1."""

import torch
from fla.ops.lightning_attn import chunk_lightning_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 1, 2, 16, device=device)
_, state = chunk_lightning_attn(x, x, x, layer_idx=0, num_layers=1, output_final_state=True)
print("expected", [1.0, 1.0])
print("got", state[0, :, 0, 0].tolist())
