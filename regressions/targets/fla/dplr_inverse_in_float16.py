"""DPLR with safe gates, in float32: a token writes 0.1, and the next reads it."""

import torch
from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
zero, e = torch.zeros(1, 2, 1, 16, device=device), torch.eye(16, device=device)
a, b = torch.stack([e[0], e[1]]).view_as(zero), torch.stack([0.1 * e[1], e[2]]).view_as(zero)
q, state = e[2].expand_as(zero).contiguous(), e[0].view(1, 1, 16, 1).repeat(1, 1, 1, 16)
given = {"gk": zero, "scale": 1.0, "initial_state": state, "safe_gate": True}
o, _ = chunk_dplr_delta_rule(q, zero, zero, a, b, **given)
print("expected", 0.1)
print("got", round(o[0, 1, 0, 0].item(), 6))
