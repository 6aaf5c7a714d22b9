"""The arguments that the fuzz command rejects, and the cases that it draws."""

import pytest

from properties.fuzz import planted
from properties.fuzz.__main__ import main
from properties.fuzz.conftest import on_l2norm
from properties.fuzz.night import lap_seed

pytestmark = pytest.mark.ops("l2norm")

_CASE = '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":3},"lengths":[2]}'


def _with(field: str) -> str:
    return f"{_CASE[:-1]},{field}}}"


def broken(device: object) -> object:
    return 1 / 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--minutes", "-1"], "--minutes: -1.0, expected more than 0"),
        (["--examples", "0"], "--examples: 0, expected 1 or more"),
        (["--jobs", "-3"], "--jobs: -3, expected 1 or more"),
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
        (["--case-timeout", "0"], "--case-timeout: 0.0, expected more than 0"),
        (["--target", "nowhere:at_all"], "target: 'nowhere:at_all' cannot be imported"),
        (["--target", f"{__name__}:broken"], "cannot be made: ZeroDivisionError: division by zero"),
        (["--ledger", "/nowhere.py"], "ledger: '/nowhere.py', expected a file"),
        (["--ledger", "pyproject.toml"], "ledger: 'pyproject.toml'"),
        (["--op", "l2norm", "--mode", "chunk"], "nothing that is l2norm and chunk"),
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
