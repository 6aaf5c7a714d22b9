"""Files of results."""

from pathlib import Path

import pytest

from kernels.bench.groups import Row
from kernels.bench.results import Results


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    Results({"device": "a GPU"}, rows[:1]).write(path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        Results({"device": object()}, rows).write(path)
    assert Results.read(path).rows == rows[:1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for text in ("{", "[]", "{}", '{"rows": [{}], "left_out": []}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"no results of kernels\.bench"):
            Results.read(path)
