"""One, and 256 steps of 2^-9: in one call, and in 257 calls that pass the state on."""

import torch
from fla.ops.hgrn import fused_recurrent_hgrn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.full((1, 257, 1), 2.0**-9, dtype=torch.bfloat16, device=device)
x[:, 0] = 1.0
g = torch.zeros_like(x)
whole, _ = fused_recurrent_hgrn(x, g)
state = None
for t in range(257):
    o, state = fused_recurrent_hgrn(
        x[:, t : t + 1], g[:, t : t + 1], initial_state=state, output_final_state=True
    )
print("expected", whole[0, -1].tolist())
print("got", o[0, -1].tolist())
