import subprocess
import sys


def test_the_reference_imports_and_runs_without_triton_and_without_the_other_packages() -> None:
    program = """
import sys
for blocked in ("triton", "kernels", "properties", "regressions"):
    sys.modules[blocked] = None
import torch
import reference
q, k, v = torch.ones(1, 2, 3, 5), torch.ones(1, 2, 3, 5), torch.ones(1, 2, 3, 7)
for op in (reference.linear_attn, reference.gla, reference.attention):
    assert op(q, k, v)[0].shape == (1, 2, 3, 7)
cos, sin = reference.rotary_tables(2, 4)
assert reference.rotary_embedding(q, cos, sin).shape == q.shape
for name in reference.__all__:
    getattr(reference, name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
