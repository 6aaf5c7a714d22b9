"""The arguments that the fuzz command rejects, and the cases that it draws."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from properties import scope
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.fuzz import planted, record
from properties.fuzz.__main__ import main
from properties.fuzz.answer import Failure
from properties.fuzz.conftest import Fuzz, on_l2norm, under_differential
from properties.fuzz.log import Log, Tally
from properties.fuzz.turn import lap_seed
from properties.jobs import Job
from properties.laws.fingerprint import Fingerprint
from properties.targets.oracle import Oracle

pytestmark = pytest.mark.ops("l2norm")

_ROOT = Path(__file__).parents[2]

_CASE = '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":3},"lengths":[2]}'
_PACK_OF_NO_ROWS = (
    '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":0,"D":3,"W":2},"lengths":[2],'
    '"packed":true}'
)


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
        (["--jobs", "100000"], "--jobs: 100000, expected at most"),
        (["--case", "x"], "case: 'x', expected the JSON object of a case"),
        (["--case", _CASE, "--op", "l2norm"], "--op: not allowed with --case, which is not drawn"),
        (["--case", _CASE, "--resume", "kept"], "--resume: not allowed with --case"),
        (["--case", _CASE, "--no-shrink"], "--no-shrink: not allowed with --case"),
        (["--case", _CASE, "--findings", "kept"], "--findings: not allowed with --case"),
        (["--case", _CASE, "--minutes", "1"], "--minutes: not allowed with argument --case"),
        (["--case", _CASE.replace('"H":1,', "")], "case: no H among its dims"),
        (["--case", _CASE.replace("float32", "float64")], "case: dtype: 'float64', expected"),
        (["--case", _CASE.replace('"H":1', '"H":1,"K":2')], "case: dims: 'K', expected one of"),
        (["--case", _CASE.replace("[2]", "[-2]")], "case: lengths: -2, expected an integer"),
        (["--case", _CASE.replace("[2]", "[2,2]")], "case: lengths: (2, 2), expected one"),
        (["--case", _with('"packed":true')], "case: packed: True, expected False of l2norm, which"),
        (["--case", _PACK_OF_NO_ROWS], "case: dims: B: 0, expected 1 where sequences are packed"),
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
        (["--case", _with('"seed":-1')], "case: seed: -1, expected an integer from 0"),
        (["--case", _with('"seed":true')], "case: seed: True, expected an integer"),
        (["--case", _CASE.replace('"D":3', '"D":"3"')], "case: dims: {'B': 1, 'H': 1, 'D': '3'}"),
        (["--case", _CASE.replace("[2]", "[2.0]")], "case: lengths: [2.0], expected a list of"),
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
        (["--case", _with('"dtype":"x","tile":1')], "case: dtype: 'x', expected one of bfloat16"),
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
    ("option", "name", "told"),
    [
        ("--resume", "loop", "expected a folder that can be written to"),
        ("--report", "loop/inside", "expected a folder that can be written to"),
        ("--record", "loop/inside", "expected a file in a folder that exists"),
        ("--record", "n" * 300, "File name too long"),
        ("--record", "pipe", "expected a regular file"),
    ],
)
def test_a_path_that_cannot_be_is_rejected(
    option: str, name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit) as ended:
        main([*on_l2norm("good"), option, str(tmp_path / name)])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("op", "options", "told"),
    [
        ("l2norm", {"eps": "x"}, "eps: 'x' (str), expected float"),
        ("l2norm", {"eps": True}, "eps: True (bool), expected float"),
        ("l2norm", {"eps": None}, "eps: None (NoneType), expected float"),
        ("l2norm", {"eps": -1.0}, "eps: -1.0, expected"),
        ("l2norm", {"eps": 10**30}, f"eps: {10**30}, expected an integer of 64 bits"),
        ("cumsum", {"reverse": 1}, "reverse: 1 (int), expected bool"),
        ("cumsum", {"chunk_size": 2.5}, "chunk_size: 2.5 (float), expected int or None"),
        ("cumsum", {"chunk_size": [2]}, "chunk_size: int64[1], expected int or None"),
        ("short_conv", {"activation": "tan"}, "activation: 'tan', expected"),
        ("short_conv", {"activation": {}}, "activation: {} (dict), expected str or None"),
        ("rotary_embedding", {"seqlen_offsets": ["a"]}, "seqlen_offsets: ['a']: "),
    ],
)
def test_an_option_that_no_call_can_have_is_rejected(
    op: str, options: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mode = OPS[op].modes[0].name
    case = OPS[op].full(mode, dict.fromkeys(OPS[op].dims, 4), (3,), packed=False)
    with pytest.raises(SystemExit) as ended:
        main(["--case", case.with_options(**options).to_json()])
    assert ended.value.code == 2
    assert f"case: options: {told}" in capsys.readouterr().err


def test_an_earlier_call_with_options_of_other_types_is_rejected() -> None:
    case = Case.from_json(_with('"earlier":{"eps":"x"}'))
    with pytest.raises(ValueError, match="case: earlier: eps: 'x'"):
        scope.check(Oracle(), case)


def test_fewer_open_files_than_processes_need_are_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (70, 70))
    with pytest.raises(SystemExit) as ended:
        main(on_l2norm("good"))
    assert ended.value.code == 2
    message = "open files: 70 at most (ulimit -n), expected 80 for 1 process"
    assert message in capsys.readouterr().err


def test_a_machine_that_starts_no_thread_begins_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(SystemExit) as ended:
        main(["--jobs", "1", "--op", "l2norm"])
    assert ended.value.code == 2
    assert "threads: can't start new thread (ulimit -u), expected" in capsys.readouterr().err


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


@pytest.mark.parametrize("option", ["--resume", "--report"])
def test_two_runs_do_not_write_to_one_folder(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    flock(other, LOCK_EX)
    try:
        with pytest.raises(SystemExit) as ended:
            main(on_l2norm("good", option, str(tmp_path)))
    finally:
        os.close(other)
    assert ended.value.code == 2
    assert f"{option}: {tmp_path} belongs to a run that goes on" in capsys.readouterr().err


def test_a_bug_of_an_op_that_is_gone_is_dropped(tmp_path: Path, fuzz: Fuzz) -> None:
    job = Job("l2norm", "fused", "differential", "float32")
    log = Log(f"{planted.__name__}:good", 1, {job: Tally(examples=5)})
    case = replace(Case.from_json(_CASE), op="norm_of_old")
    log.open(Failure(Fingerprint("norm", "differential", "y"), "differential", case, "wrong"), 1.0)
    (tmp_path / "kept").mkdir()
    log.write(tmp_path / "kept")
    code, printed = fuzz("good", "--resume", "kept")
    assert code == 0
    assert "no bugs in 5 examples" in printed


def test_a_log_of_jobs_that_are_not_selected_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job("l2norm", "fused", law, "float32") for law in ("determinism", "differential")]
    target = f"{planted.__name__}:good"
    Log(target, 1, {job: Tally(examples=3) for job in jobs}).write(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(on_l2norm("good", "--resume", str(tmp_path)))
    assert ended.value.code == 2
    message = "has 1 other job, as l2norm-fused-determinism-float32, expected all of them selected"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{}", '[{"op": 1, "dtype": 2, "device": 3, "examples": 1, "worst": 1}]']
)
def test_a_record_of_other_contents_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "worst.json").write_text(text)
    with pytest.raises(ValueError, match="expected a file that --record wrote"):
        record.read(tmp_path / "worst.json")


def _recorded(path: Path) -> None:
    row = record.Record("l2norm", "float32", "simulator", 1, 0.5)
    for _ in range(20):
        record.add(path, {row.key: row})


def test_runs_that_end_at_once_add_to_one_record(tmp_path: Path) -> None:
    path = tmp_path / "worst.json"
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=_recorded, args=(path,)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    (row,) = record.read(path).values()
    assert row.examples == 40
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_to_a_record_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "link").symlink_to("shared/worst.json")
    record.add(tmp_path / "link", {})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "shared" / "worst.json").read_text()


def test_ctrl_c_ends_the_command_while_python_still_imports(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("print('here', flush=True)\nimport time\ntime.sleep(60)\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "properties.fuzz"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(_ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "here\n"
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=60)[0] == "stopped by SIGINT\n"
    assert run.returncode == 128 + signal.SIGINT


def test_no_two_rounds_of_neighbouring_seeds_draw_the_same_cases() -> None:
    jobs = [Job("l2norm", "fused", law, "float32") for law in ("differential", "packing")]
    seeds = {lap_seed(seed, lap, job) for seed in range(20) for lap in range(20) for job in jobs}
    assert len(seeds) == 800


@pytest.mark.parametrize(
    ("target", "how"),
    # Its first call may take half as long again.
    [("hanging", "hangs for 0.3 s"), ("crashing", "ends with SIGSEGV")],
)
def test_one_case_ends_whatever_it_does(
    target: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*under_differential(target), "--case", _CASE, "--case-timeout", "0.2"]) == 1
    printed = capsys.readouterr().out
    assert f"differential: the process that ran it {how}" in printed
    assert "planted.py:" in printed


def test_a_case_that_passes_is_reported_as_passing_whatever_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert main([*under_differential("good"), "--case", _CASE]) == 0
    assert "differential holds: worst error 0." in capsys.readouterr().out


def test_an_error_of_a_kernel_is_a_finding_and_no_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*under_differential("raising"), "--case", _CASE]) == 1
    printed = capsys.readouterr().out
    assert "differential: ValueError: head dim 7 is not supported" in printed
    assert "planted.py:" in printed
    assert 'raise ValueError("head dim 7 is not supported")' in printed
    assert f"--target {planted.__name__}:raising" in printed
