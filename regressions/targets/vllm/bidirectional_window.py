"""Without `causal` a window of W shows W - 1 keys on either side of each query of a block."""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
count = {"dtype": torch.int32, "device": device}
q = torch.zeros(5, 1, 16, dtype=torch.bfloat16, device=device)
v = torch.zeros(1, 16, 1, 16, dtype=torch.bfloat16, device=device)
v[0, :5] = torch.arange(5.0).view(5, 1, 1)
o, table, length = torch.empty_like(q), torch.zeros(1, 2, **count), torch.tensor([5], **count)
ends, window, no = torch.tensor([0, 5], **count), (1, 1), None
unified_attention(q, v, v, o, ends, 5, length, 5, 0.0, False, window, table, 0.0, no, no, no)
print("expected", [0.5, 1.0, 2.0, 3.0, 3.5])
print("got", [round(x, 2) for x in o[:, 0, 0].tolist()])
