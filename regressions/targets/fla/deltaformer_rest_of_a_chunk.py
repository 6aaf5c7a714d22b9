"""DeltaFormer of a batch: gradients of the first and the last of 640 values, in chunks of 512."""

import sys
from types import ModuleType

import torch

for name in ("fla.layers", "fla.layers.utils"):  # fla-core does not have them
    sys.modules[name] = ModuleType(name)
sys.modules["fla.layers.utils"].pad_input = sys.modules["fla.layers.utils"].unpad_input = None
from fla.ops.deltaformer.parallel import ParallelDeltaformerFunction  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
x, beta = torch.zeros(1, 640, 1, 16, device=device), torch.zeros(1, 640, 1, device=device)
v = torch.ones(1, 640, 1, 16, device=device, requires_grad=True)
ParallelDeltaformerFunction.apply(x, x, v, beta, 512, None).sum().backward()
print("expected", [1.0, 1.0])
print("got", v.grad[0, [0, -1], 0, 0].tolist())
