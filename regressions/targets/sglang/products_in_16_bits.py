"""Two logits, 17 * 17 and 17 * 16 + 16: float32 tells them apart, and bfloat16 does not."""

import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from unittest.mock import MagicMock

import torch

root = Path(find_spec("sglang").submodule_search_locations[0])
file = min(root.glob("**/*ops/**/decode_attention.py"))
server = MagicMock(is_cuda=bool, is_hip=bool, unpack_aux_tensors=lambda *_: (0, 0, 0, 0))
sys.modules |= {line.split()[1]: server for line in file.open() if line[:11] == "from sglang"}
rows = torch.tensor([[17, 1], [17, 0], [16, 16]]).bfloat16() @ torch.eye(2, 16).bfloat16()
q, k, o = *rows[:, None].split([1, 2]), torch.empty(1, 1, 16).bfloat16()
ends, one, parts = torch.tensor([0, 2]), torch.ones(1).int(), torch.empty(1, 1, 1, 16)
args = q, k, k, o, ends, ends // 2, parts, parts[..., 0].clone(), one, 1, 1.0, 1.0, 1.0
run_path(str(file))["decode_attention_fwd"](*args)
print(f"expected 16.75\ngot {o[0, 0, 0].item()}")
