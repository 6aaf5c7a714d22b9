"""The largest error / budget over many drawn cases is below 1, but not far below."""

from pathlib import Path

import pytest

from properties.catalogue import DTYPES, OPS
from properties.fuzz.record import read

ROWS = read(Path(__file__).with_name("worst.json"))
LEAST = 0.05
RECORD = "python -m properties.fuzz --law differential --record properties/verdict/worst.json --op"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op.name for op in OPS.values() if op.modes])
def test_errors_come_near_their_budgets_and_not_past_them(op: str, dtype: str) -> None:
    rows = [row for row in ROWS.values() if (row.op, row.dtype) == (op, dtype)]
    assert rows, f"no run has recorded it, run {RECORD} {op}"
    worst, examples = max(row.worst for row in rows), sum(row.examples for row in rows)
    assert worst <= 1
    told = f"{worst} of the budget was used in {examples} examples"
    assert worst >= LEAST, f"{told}: run {RECORD} {op}"
