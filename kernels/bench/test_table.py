"""The table that a run prints."""

import torch

from kernels.bench.groups import Group, Row
from kernels.bench.shapes import Shape
from kernels.bench.table import Table


def test_the_table_has_aligned_columns_and_a_gap_between_groups(rows: list[Row]) -> None:
    group = Group("gla", Shape(2, 3, 5, 4, 6), torch.bfloat16, False, ("chunk",), ("fla",))
    table = Table([group])
    lines = [table.head(), *(table.line(row) for row in rows)]
    assert "\n".join(lines).splitlines() == [
        "op   B,T,H,K,V  pass              mode                     "
        "       ms          20% - 80%    /fla  /torch  floor   GB/s  TFLOP/s  adds, MiB  first, s",
        "",
        "gla  2,3,5,4,6  forward           fla chunk                "
        "    0.250      0.125 - 0.500                    20%   1234      0.3        3.0",
        "gla  2,3,5,4,6  forward           chunk                    "
        "failed: RuntimeError: out of memory",
        "",
        "gla  2,3,5,4,6  forward+backward  chunk                    "
        "    0.250      0.125 - 0.500    0.50            50%      7    123.5        3.0      1.50",
    ]  # fmt: skip
