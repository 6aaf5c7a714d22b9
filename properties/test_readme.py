"""What the README says of the catalogue is true."""

from pathlib import Path

import pytest

from properties.catalogue.__main__ import table, with_table
from properties.mutants import shares
from properties.mutants.mutant import modules
from properties.mutants.shares import Share

README = Path(__file__).parents[1] / "README.md"


def test_table_of_ops_is_current() -> None:
    text = README.read_text()
    assert text == with_table(text), "run python -m properties.catalogue --write README.md"


def test_mutants_stand_in_the_table_of_ops_that_were_tried_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {name: Share(2, 1) for name, _ in modules()}
    del known["kernels.norm.l2norm"]
    monkeypatch.setattr(shares, "read", lambda: known)
    rows = {line.split("`")[1]: line for line in table().splitlines() if line.startswith("| `")}
    assert rows["l2norm"].endswith("|  |")
    count = int(rows["short_conv"].split("|")[-2].split()[0])
    assert count > 3
    assert rows["short_conv"].endswith(f"| {count} of {2 * count} |")
