"""The delta rule is differentiated by q with a state that is a constant."""

import torch
from fla.ops.delta_rule import fused_recurrent_delta_rule
from triton.compiler.errors import CompilationError

device = "cuda" if torch.cuda.is_available() else "cpu"
x, state = torch.ones(1, 1, 1, 16, device=device), torch.ones(1, 1, 16, 16, device=device)
q = x.clone().requires_grad_()
o, _ = fused_recurrent_delta_rule(q, x, x, initial_state=state)
print("expected", 4.0)
try:
    o.sum().backward()
    print("got", q.grad[0, 0, 0, 0].item())
except CompilationError as error:
    print("got", type(error).__name__)
