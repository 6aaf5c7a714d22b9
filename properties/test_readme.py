"""What the README says of the catalogue is true."""

from pathlib import Path

from properties.catalogue.__main__ import with_table

README = Path(__file__).parents[1] / "README.md"


def test_table_of_ops_is_current() -> None:
    text = README.read_text()
    assert text == with_table(text), "run python -m properties.catalogue --write README.md"
