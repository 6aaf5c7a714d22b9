"""The LSE beside a sink of 100, which no logit is near, is 100."""

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
x, lse, sink = torch.zeros(1, 1, 16).half(), torch.empty(1, 1), torch.tensor([100.0])
ends, none = torch.tensor([0, 1]), torch.tensor([0, 0])
run(x, x, x, x, x, x, ends, none, none, None, True, None, 1, 1.0, 1.0, sinks=sink, lse_extend=lse)
print(f"expected 100.0\ngot {lse.item()}")
