"""Values that are the first 16 of 32 channels of their keys, with two heads of queries."""

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from unittest.mock import MagicMock

import torch
from triton import CompilationError

file = min(Path(find_spec("sglang").origin).parent.glob("**/*ops/**/decode_attention.py"))
server = MagicMock(is_cuda=bool, is_hip=bool, unpack_aux_tensors=lambda *_: (0, 0, 0, 0))
sys.modules |= {line.split()[1]: server for line in file.open() if line[:11] == "from sglang"}
q, (o, x), e = torch.ones(1, 2, 32), torch.zeros(2, 1, 2, 16), torch.tensor([0, 1])
args = q, q[:, :1], q[:, :1, :16], o, e, e[:1], x[:, :, None], x[..., 0] + 0, e[1:], 1, 1, 1, 1
with suppress(CompilationError):
    run_path(str(file))["decode_attention_fwd"](*args, has_mla=True)
print(f"expected 1.0\ngot {o[0, 0, 0].item()}")
