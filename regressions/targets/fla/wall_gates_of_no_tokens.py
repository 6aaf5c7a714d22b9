"""Wall attention of no tokens, with gates that are every other channel of a tensor."""

import torch
from fla.ops.wall_attn import parallel_wall_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 1, 16, device=device)
g = torch.ones(1, 0, 1, 32, device=device)[..., ::2]
print("expected", (1, 0, 1, 16))
try:
    o = parallel_wall_attn(x, x, x, g)
    print("got", tuple((o[0] if isinstance(o, tuple) else o).shape))
except ValueError as error:
    print("got", type(error).__name__)
