"""A run, from the command line to its last word, without a GPU."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.bench import __main__ as command
from kernels.bench import baselines
from kernels.bench.groups import Group, Row
from kernels.bench.results import Results
from kernels.bench.timing import Timing
from kernels.tiles import TABLE

ONLY = ["--op", "gla", "--shape", "2,3,5,4,6", "--against", "none"]


@pytest.mark.usefixtures("a_gpu")
def test_a_run_shows_its_rows_writes_them_and_tells_what_failed(
    rows: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measured(group: Group, *arguments: Any) -> list[Row]:
        return rows[2:] if group.backward else rows[:2]

    monkeypatch.setattr(Group, "rows", measured)
    path = tmp_path / "rows.json"
    assert command.main([*ONLY, "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("a GPU, torch ")
    lines = [line for line in said.out.splitlines() if line.startswith("gla ")]
    assert [line.split()[2:5] for line in lines] == [
        ["forward", "fla", "chunk"],
        ["forward", "chunk", "failed:"],
        ["forward+backward", "chunk", "0.250"],
    ]
    assert "[1/2] gla 2,3,5,4,6 forward" in said.err
    assert "gla 2,3,5,4,6 forward chunk failed: RuntimeError: out of memory" in said.err
    written = json.loads(path.read_text())
    assert written["dtype"] == "bfloat16"
    assert written["command"] == (
        "python -m kernels.bench --op gla --shape 2,3,5,4,6 --against none"
    )
    assert written["rows"][0]["timing"]["median"] == 0.25
    assert written["rows"][1]["error"] == "RuntimeError: out of\nmemory"
    assert Results.read(path).rows == rows

    assert command.main([*ONLY, "--backward"]) == 0


@pytest.mark.usefixtures("a_gpu")
def test_what_was_measured_before_a_run_ends_is_shown_and_written(
    rows: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*arguments: Any) -> Iterator[Row]:
        yield rows[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(Group, "rows", interrupted)
    path = tmp_path / "rows.json"
    assert command.main([*ONLY, "--json", str(path)]) == 130
    said = capsys.readouterr()
    assert "\ngla  2,3,5,4,6  forward           fla chunk" in said.out
    left = "gla 2,3,5,4,6 forward, gla 2,3,5,4,6 forward+backward"
    assert f"interrupted; left out: {left}" in said.err
    assert Results.read(path).rows == rows[:1]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("a_gpu")
def test_a_file_that_cannot_be_written_ends_no_run(
    rows: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Group, "rows", lambda *arguments: rows[:1])
    path = tmp_path / "rows.json"
    path.mkdir()
    assert command.main([*ONLY, "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.count("fla chunk") == 2
    assert said.err.count("--json not written: [Errno 21] Is a directory") == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("a_gpu")
def test_first_calls_are_timed_of_those_that_they_are_wanted_of(
    timing: Timing, subject: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "time_call", lambda call, **options: timing)
    monkeypatch.setattr(command, "first_call", lambda group, kind, mode, device: len(mode))
    monkeypatch.setattr(torch, "device", lambda name: subject.device)
    only = ["--op", "l2norm", "--shape", "2,3,5,4,6", "--against", "torch", "--forward"]
    path = tmp_path / "rows.json"
    assert command.main([*only, "--first-calls", "--json", str(path)]) == 0
    assert [(row.kind, row.first) for row in Results.read(path).rows] == [
        ("torch", None), ("ours", len("fused")),
    ]  # fmt: skip


@pytest.mark.usefixtures("a_gpu")
def test_a_baseline_that_does_not_import_ends_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fla.py").write_text("import a_package_that_nobody_has\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    baselines.fla_function.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    assert command.main([*ONLY[:-2], "--against", "fla,torch"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "fla is here and cannot be imported: No module named 'a_package" in said.err


@pytest.mark.usefixtures("a_gpu")
def test_a_lost_gpu_ends_the_run_with_what_it_has(
    rows: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lost() -> None:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(Group, "rows", lambda *arguments: rows[:1])
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    path = tmp_path / "rows.json"
    assert command.main([*ONLY, "--json", str(path)]) == 1
    assert "the GPU is lost: an illegal memory access; left out:" in capsys.readouterr().err
    assert Results.read(path).rows == rows[:1]


@pytest.mark.usefixtures("a_gpu")
def test_no_group_begins_after_the_budget(
    rows: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([0.0, 9.0, 11.0])
    monkeypatch.setattr(command, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Group, "rows", lambda *arguments: rows[:1])
    path = tmp_path / "rows.json"
    assert command.main([*ONLY, "--budget", "10", "--json", str(path)]) == 1
    assert "no time was left; left out: gla 2,3,5,4,6 forward+backward" in capsys.readouterr().err
    written = Results.read(path)
    assert written.rows == rows[:1]
    assert written.left_out == ["gla 2,3,5,4,6 forward+backward"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "8,64,32,64"], "expected five numbers"),
        (["--shape", "8,64,32,64,0"], "expected five numbers"),
        (["--shape", "8,64,32,64,-1"], "expected five numbers"),
        (["--op", "conv"], "invalid choice"),
        (["--dtype", "int8"], "invalid choice"),
        (["--against", "numpy"], "expected some of fla, torch"),
        (["--budget", "0"], "expected a whole number above 0"),
        (["--warm", "none"], "expected a whole number above 0"),
        (["--first-calls", "theirs"], "expected some of ours, fla, torch"),
        (["--packed", "--decode"], "not allowed with"),
        (["--preset", "huge"], "invalid choice"),
        (["--json", "no such directory/rows.json"], "in a directory that exists"),
        (["--forward", "--backward"], "not allowed with"),
        (["--op", "gla", "--mode", "parallel"], "--mode: parallel, expected a mode of gla"),
    ],
)
def test_bad_arguments_end_with_a_sentence_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_names_every_op_and_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for op, mode in TABLE:
        assert op in text
        assert mode in text


def test_without_a_gpu_there_are_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "rows.json"
    assert command.main(["--json", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no GPU" in said.err
    assert not path.exists()
