"""The final state of HGRN in chunks without tokens."""

import torch
from fla.ops.hgrn import chunk_hgrn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 0, 16, device=device)
print("expected", (1, 16))
try:
    print("got", tuple(chunk_hgrn(x, x, output_final_state=True)[1].shape))
except IndexError as error:
    print("got", type(error).__name__)
