"""A part without keys, of LSE -inf, changes nothing, whatever its o; two of them give 0."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import torch

root = Path(find_spec("sglang").submodule_search_locations[0])
file = next(f for f in root.rglob("merge_state.py") if "@triton.jit" in f.read_text())
spec = spec_from_file_location("merge_state", file)
module = module_from_spec(spec)
spec.loader.exec_module(module)
device = "cuda" if torch.cuda.is_available() else "cpu"
o = torch.tensor([[[2.0]]], device=device)
none, some = torch.full((1, 1), -torch.inf, device=device), torch.zeros(1, 1, device=device)
print("expected", [2.0, 0.0])
one, _ = module.merge_state_triton(o * torch.nan, none, o, some)
both, _ = module.merge_state_triton(o, none, o, none)
print("got", [one.item(), both.item()])
