"""A scale of 0 weighs both keys alike: a query gets 8 of values 16 and 0."""

import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from unittest.mock import MagicMock

import torch

root = Path(find_spec("sglang").submodule_search_locations[0])
file = min(root.glob("**/*ops/**/extend_attention.py"))
server = MagicMock(is_cuda=bool, is_hip=bool)
server._extract_kv_strides = server.unpack_aux_tensors = lambda *_: (0, 0, 0, 0)
sys.modules |= {line.split()[1]: server for line in file.open() if line[:11] == "from sglang"}
run = run_path(str(file))["extend_attention_fwd"]
x = torch.eye(2, 16).half()[:, None] * 16
o, ends, none = torch.empty_like(x), torch.tensor([0, 2]), torch.tensor([0, 0])
run(x, x, x, o, x, x, ends, none, none, None, False, None, 2, 1.0, 1.0, sm_scale=0.0)
print(f"expected 8.0\ngot {o[0, 0, 0].item()}")
