"""DeltaFormer of one token: its gradient."""

import sys
from types import ModuleType

import torch

for name in ("fla.layers", "fla.layers.utils"):  # fla-core does not have them
    sys.modules[name] = ModuleType(name)
sys.modules["fla.layers.utils"].pad_input = sys.modules["fla.layers.utils"].unpad_input = None
from fla.ops.deltaformer.parallel import ParallelDeltaformerFunction  # noqa: E402

x, beta = torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1)
v = torch.ones(1, 1, 1, 16, requires_grad=True)
print("expected", 1.0)
try:
    ParallelDeltaformerFunction.apply(x, x, v, beta, 1, None).sum().backward()
    print("got", v.grad[0, 0, 0, 0].item())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
