"""`python -m properties.simulator` runs a script that does not know the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from properties.simulator.__main__ import main

SCRIPT = """
import sys, torch, triton, triton.language as tl

@triton.jit
def add(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) + 1, mask=i < n)

x = torch.randn(int(sys.argv[1]))
y = torch.empty_like(x)
add[(triton.cdiv(len(x), 16),)](x, y, len(x), B=16)
print(torch.equal(y, x + 1))
"""


def test_an_option_out_of_range_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--index-bits", "1", __file__])
    assert ended.value.code == 2
    assert "index_bits: 1, expected 2 to 32" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "status"), [("32", 0), ("40", 1)])
def test_anybody_s_script_runs_unchanged(size: str, status: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "properties.simulator", str(script), size]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout == ("" if status else "True\n")
    if status:
        assert f"load out of bounds in kernel add at {script}:7\n" in done.stderr
