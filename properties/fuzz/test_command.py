"""The arguments that the fuzz command rejects, and the cases that it draws."""

import os
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from properties.fuzz import planted, record
from properties.fuzz.__main__ import main
from properties.fuzz.conftest import on_l2norm
from properties.fuzz.log import Log, Tally
from properties.fuzz.night import lap_seed
from properties.jobs import Job

pytestmark = pytest.mark.ops("l2norm")

_CASE = '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":3},"lengths":[2]}'


def _with(field: str) -> str:
    return f"{_CASE[:-1]},{field}}}"


def broken(device: object) -> object:
    return 1 / 0


def leaving(device: object) -> object:
    return sys.exit(0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--minutes", "-1"], "--minutes: '-1', expected a finite number above 0"),
        (["--minutes", "inf"], "--minutes: 'inf', expected a finite number above 0"),
        (["--examples", "0"], "--examples: '0', expected an integer of at least 1"),
        (["--examples", "1.5"], "--examples: '1.5', expected an integer of at least 1"),
        (["--jobs", "-3"], "--jobs: '-3', expected an integer of at least 1"),
        (["--case", "x"], "case: 'x', expected the JSON object of a case"),
        (["--case", _CASE.replace('"H":1,', "")], "case: no H among its dims"),
        (["--case", _CASE.replace("float32", "float64")], "case: dtype: 'float64', expected"),
        (["--case", _CASE.replace('"H":1', '"H":1,"K":2')], "case: dims: 'K', expected one of"),
        (["--case", _CASE.replace("[2]", "[-2]")], "case: lengths: -2, expected an integer"),
        (["--case", _CASE.replace("[2]", "[2,2]")], "case: lengths: (2, 2), expected one"),
        (["--case", _with('"values":"odd"')], "case: values: 'odd', expected one of gaussian"),
        (["--case", _with('"options":{"scale":1}')], "case: options: 'scale', expected one of"),
        (["--case", _with('"layout":"round"')], "case: layout: 'round', expected one of"),
        (["--case", _with('"given":["bias"]')], "case: given: 'bias', expected one of nothing"),
        (["--case", _CASE, "--law", "exactness"], "--law: 'exactness' is not stated of l2norm"),
        (["--findings", __file__], "--findings:"),
        (["--findings", f"{__file__}/below"], "expected a folder that can be written to"),
        (["--resume", __file__], "--resume:"),
        (["--report", __file__], "--report:"),
        (["--record", __file__], "--record:"),
        (["--case-timeout", "0"], "--case-timeout: '0', expected a finite number above 0"),
        (["--target", "nowhere:at_all"], "target: 'nowhere:at_all' cannot be imported"),
        (["--target", f"{__name__}:broken"], "cannot be made: ZeroDivisionError: division by zero"),
        (["--target", f"{__name__}:leaving"], "cannot be made: SystemExit: 0"),
        (["--case", "[" * 100_000], "expected the JSON object of a case"),
        (["--case", "{}"], "case: no op, mode, dtype, dims, lengths, expected all"),
        (["--case", _with('"layouts":[]')], "case: layouts: [], expected an object of text"),
        (["--case", _with('"layot":"sliced"')], "case: 'layot', expected one of op, mode"),
        (["--case", _with('"key_lengths":2')], "expected a list of an integer or null"),
        (["--case", _CASE.replace('"l2norm"', '["l2norm"]')], "case: op: ['l2norm'], expected"),
        (["--case", _CASE.replace('"D":3', '"D":-3')], "case: dims: D: -3, expected an integer of"),
        (["--case", _with('"same":{"x":"x"}')], "case: same: 'x', expected one of nothing"),
        (
            ["--target", f"{planted.__name__}:good", "--case", _with('"auto":true')],
            "case: auto: True, expected one of False",
        ),
        (["--record", str(Path(__file__).parent)], "expected a file in a folder that exists"),
        (["--report", ""], "--report: '', expected a folder that can be written to"),
        (["--ledger", "/nowhere.py"], "ledger: '/nowhere.py', expected a file"),
        (["--ledger", "pyproject.toml"], "ledger: 'pyproject.toml'"),
        (["--op", "l2norm", "--mode", "chunk"], "it has nothing of op l2norm and mode chunk"),
        (["--record", "/nowhere/at/all.json"], "expected a file in a folder that exists"),
    ],
)
def test_arguments_that_make_no_run_are_rejected(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"target": "ours", "se', "null", '{"target": "ours", "seed": 1}', b"\xff\xfe"],
)
def test_a_log_that_cannot_be_read_is_rejected(
    text: str | bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit) as ended:
        main(on_l2norm("good", "--resume", str(tmp_path)))
    assert ended.value.code == 2
    assert "expected a night that was kept here" in capsys.readouterr().err


def test_two_runs_keep_no_log_in_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    flock(other, LOCK_EX)
    try:
        with pytest.raises(SystemExit) as ended:
            main(on_l2norm("good", "--resume", str(tmp_path)))
    finally:
        os.close(other)
    assert ended.value.code == 2
    assert f"--resume: {tmp_path} belongs to a run that goes on" in capsys.readouterr().err


def test_a_log_of_jobs_that_are_not_selected_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job("l2norm", "fused", law, "float32") for law in ("determinism", "differential")]
    target = f"{planted.__name__}:good"
    Log(target, 1, {job: Tally(examples=3) for job in jobs}).write(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(on_l2norm("good", "--resume", str(tmp_path)))
    assert ended.value.code == 2
    told = "has 1 other jobs, as l2norm-fused-determinism-float32, expected all of them selected"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{}", '[{"op": 1, "dtype": 2, "device": 3, "examples": 1, "worst": 1}]']
)
def test_a_record_of_other_contents_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "worst.json").write_text(text)
    with pytest.raises(ValueError, match="expected a file that --record wrote"):
        record.read(tmp_path / "worst.json")


def test_runs_of_neighbouring_seeds_share_no_lap() -> None:
    seeds = {lap_seed(seed, lap) for seed in range(20) for lap in range(20)}
    assert len(seeds) == 400


@pytest.mark.parametrize(
    ("target", "how"),
    # Its first call may take half as long again.
    [("hanging", "hangs for 0.3 s"), ("crashing", "ends with SIGSEGV")],
)
def test_one_case_ends_whatever_it_does(
    target: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*on_l2norm(target), "--case", _CASE, "--case-timeout", "0.2"]) == 1
    printed = capsys.readouterr().out
    assert f"differential: the process that ran it {how}" in printed
    assert "planted.py:" in printed


def test_a_case_that_passes_is_reported_as_passing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*on_l2norm("good"), "--case", _CASE]) == 0
    assert "differential holds: worst error 0." in capsys.readouterr().out


def test_an_error_of_a_kernel_is_a_finding_and_no_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*on_l2norm("raising"), "--case", _CASE]) == 1
    printed = capsys.readouterr().out
    assert "differential: ValueError: head dim 7 is not supported" in printed
    assert "planted.py:" in printed
    assert 'raise ValueError("head dim 7 is not supported")' in printed
    assert f"--target {planted.__name__}:raising" in printed
