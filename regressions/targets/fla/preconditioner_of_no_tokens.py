"""A preconditioned delta rule of no tokens ends where it began."""

import torch
from fla.ops.precond_gated_delta_rule import chunk_precond_gated_delta_rule

device = "cuda" if torch.cuda.is_available() else "cpu"
x, g = torch.ones(1, 0, 1, 16, device=device), torch.zeros(1, 0, 1, device=device)
print("expected", (1, 1, 16))
try:
    _, _, energies = chunk_precond_gated_delta_rule(x, x, x, g, g, g, g, output_final_state=True)
    print("got", tuple(energies.shape))
except IndexError as error:
    print("got", type(error).__name__)
