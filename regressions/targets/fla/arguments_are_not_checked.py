"""States of two sequences for one: the second is nobody's."""

import torch
from fla.ops.simple_gla import chunk_simple_gla

device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.ones(1, 2, 1, 16, device=device)
state = torch.zeros(2, 1, 16, 16, device=device)
print("expected an exception")
try:
    # One sequence, and states of two.
    chunk_simple_gla(q, q, q, initial_state=state, output_final_state=True)
    print("got (1, 2, 1, 16)")
except Exception:
    print("got an exception")
