"""Two value heads share a head of keys, every strength is the default, 1: both write v."""

import torch
from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
k = torch.ones(1, 1, 1, 16, device=device) / 4
v = torch.ones(1, 1, 2, 16, device=device)
print("expected", [0.25, 0.25])
try:
    _, state = fused_recurrent_gated_delta_rule(k, k, v, output_final_state=True)
    print("got", state[0, :, 0, 0].tolist())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
