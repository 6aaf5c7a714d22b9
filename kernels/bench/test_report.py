"""The document that is made of results."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.bench import report
from kernels.bench.groups import Row
from kernels.bench.options import groups, parser
from kernels.bench.results import Results
from kernels.bench.timing import Timing

SETTING = {
    "command": "python -m kernels.bench --op gla",
    "date": "2026-01-02",
    "device": "a GPU",
    "python": "3.12.1",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "fla-core": None,
    "dtype": "bfloat16",
    "ceilings": {"bandwidth": 4.3e12, "arithmetic": 7e14},
}


def _row(kind: str, mode: str, median: float, peak: int, what: str = "forward") -> Row:
    timing = Timing(median, median, median, peak)
    return Row("gla", "2,3,5,4,6", what, kind, mode, timing, {}, 0.5, 1.0, 1.0)


ROWS = [
    _row("fla", "chunk", 4.0, 100),
    _row("fla", "fused_recurrent", 8.0, 1),
    replace(_row("ours", "chunk", 2.0, 75), first=1.5),
    _row("ours", "fused_recurrent", 9.0, 75),
    _row("torch", "composed", 1.0, 50, "forward+backward"),
    Row(
        "gla", "2,3,5,4,6", "forward+backward", "fla", "chunk",
        error="RuntimeError: a | b", refused=False,
    ),
    _row("ours", "chunk", 1.25, 50, "forward+backward"),
]  # fmt: skip


def test_the_document_says_how_it_was_made_and_where_each_wins() -> None:
    text = report.document([Results(SETTING, ROWS, ["gla 1,1,1,1,1 forward"])], every_row=True)
    lines = text.splitlines()
    assert lines[0] == "## `python -m kernels.bench --op gla`"
    assert lines[2] == (
        "a GPU, python 3.12.1, torch 2.11.0, triton 3.6.0, 2026-01-02. A copy moves 4.30 TB/s, a "
        "product of matrices in bfloat16 takes 700 TFLOP/s."
    )
    assert "Left out, as there was no time: gla 1,1,1,1,1 forward." in lines
    said = "Ours is as fast as the fastest of the others, or faster, in 1 of 2 groups."
    assert said in lines
    wins = lines[lines.index(said) + 2 :][:4]
    heading, dashes, *found = [_texts(line) for line in wins]
    assert heading == [
        "op", "B,T,H,K,V", "pass", "ours", "fla", "torch",
        "/fastest", "/floor", "memory/fla", "first, s",
    ]  # fmt: skip
    assert set(dashes) == {"---"}
    of_group = ["gla", "2,3,5,4,6"]
    assert found == [
        [*of_group, "forward", "chunk 2.000", "chunk 4.000", "", "**0.50**", "4.0", "0.75", "1.50"],
        [*of_group, "forward+backward", "chunk 1.250", "", "composed 1.000", "1.25", "2.5", "", ""],
    ]
    (failed,) = [line for line in lines if "failed" in line]
    assert r"| fla chunk | failed: RuntimeError: a \| b |" in failed
    columns = {line.replace(r"\|", "").count("|") for line in lines if line.startswith("| gla")}
    assert columns == {len(report.HEADINGS) + 1, 11}


def test_a_shape_that_ours_refuses_says_why() -> None:
    refused = Row(
        "gla", "2,3,5,512,6", "forward", "ours", "chunk",
        error="ValueError: K: 512, expected at most 256", refused=True,
    )  # fmt: skip
    text = report.document([Results(SETTING, [refused])])
    assert "| refused: ValueError: K: 512, expected at most 256 |" in text
    assert "in 0 of 0 groups" in text


def _texts(line: str) -> list[str]:
    return [text.strip() for text in line.split("|")[1:-1]]


def test_a_group_without_baselines_is_no_win() -> None:
    text = report.document([Results(SETTING, [_row("ours", "chunk", 2.0, 75)])])
    assert "in 0 of 0 groups" in text
    assert "| gla | 2,3,5,4,6 | forward | chunk 2.000 |  |  |  | 4.0 |  |  |" in text


def test_a_document_keeps_what_stands_before_the_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, path = tmp_path / "rows.json", tmp_path / "BENCHMARKS.md"
    Results(SETTING, ROWS).write(results)
    path.write_text(f"# Title\n\n{report.MARK}\nnumbers of old\n")
    assert report.main([str(results), "--write", str(path)]) == 0
    text = path.read_text()
    assert text.startswith(f"# Title\n\n{report.MARK}\n\n## `python -m kernels.bench")
    assert "numbers of old" not in text
    assert report.main([str(results)]) == 0
    assert text.endswith(capsys.readouterr().out)


def test_the_document_of_the_project_has_the_mark() -> None:
    assert report.DOCUMENT.read_text().count(report.MARK) == 1


def test_the_commands_of_the_document_are_commands() -> None:
    lines = report.DOCUMENT.read_text().splitlines()
    commands = [line for line in lines if line.startswith("python -m kernels.bench ")]
    work = [groups(parser().parse_args(shlex.split(line)[3:])) for line in commands]
    assert len(work) > 4
    assert all(work)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{}", "no results of kernels.bench")],
)
def test_what_is_no_results_is_told(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    if text is not None:
        path.write_text(text)
    assert report.main([str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_document_without_the_mark_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, path = tmp_path / "rows.json", tmp_path / "notes.md"
    Results(SETTING, ROWS).write(results)
    path.write_text("notes\n")
    assert report.main([str(results), "--write", str(path)]) == 2
    assert "behind which to write" in capsys.readouterr().err
    assert path.read_text() == "notes\n"
