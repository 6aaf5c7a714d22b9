"""The gate of gated delta rules for an input of -17."""

import torch
from fla.ops.gated_delta_rule.gate import fused_gdn_gate

device = "cuda" if torch.cuda.is_available() else "cpu"
g = fused_gdn_gate(torch.full((1, 1, 1), -17.0, device=device), torch.zeros(1, device=device))
print("expected", "-4.1e-08")
print("got", f"{g.item():.1e}")
