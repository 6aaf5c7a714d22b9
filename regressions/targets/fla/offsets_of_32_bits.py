"""An offset of 2^15 in integers of 16 bits, as of 2^31 in those of 32."""

import torch
from fla.ops.hgrn import chunk_hgrn

x = torch.zeros(1, 2048, 32)
print("expected", "no error")
try:
    print("got", chunk_hgrn(x, x)[0].sum().item())
except RuntimeError as error:
    print("got", str(error).partition(" at ")[0])
