"""A part without keys, of LSE -inf, changes nothing, whatever its o."""

import torch
from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

device = "cuda" if torch.cuda.is_available() else "cpu"
o, merged = (torch.full((1, 1, 1), 2.0, device=device) for _ in range(2))
none, some = torch.full((1, 1), -torch.inf, device=device), torch.zeros(1, 1, device=device)
print("expected", 2.0)
merge_attn_states(merged, o * torch.nan, none, o, some)
print("got", merged.item())
