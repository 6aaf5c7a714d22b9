"""Wall attention: the last two tokens have no decay between them, and a logit of 1 each."""

import torch
from fla.ops.wall_attn import parallel_wall_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.full((1, 3, 1, 16), 1 / 4, device=device)
v = torch.tensor([0.0, 0.0, 1.0], device=device).view(1, 3, 1, 1).expand(1, 3, 1, 16).contiguous()
g = torch.tensor([0.0, -80.0, 0.0], device=device).view(1, 3, 1, 1).expand(1, 3, 1, 16).contiguous()
o = parallel_wall_attn(q, q, v, g, scale=1.0)
# Weights are as 1, e, e.
print("expected", 0.4223)
print("got", round(o[0, 2, 0, 0].item(), 4))
