"""The fuzz command: what it refuses, what it draws, and what becomes of kernels that fail badly."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from properties.fuzz.__main__ import _seed, main
from properties.targets import Adapter

_CASE = '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":3},"lengths":[2]}'


def raising(device: torch.device) -> Adapter:
    """A target whose kernel raises what a bad argument would."""

    def l2norm(x: Tensor) -> Tensor:
        raise ValueError("head dim 7 is not supported")

    return Adapter({"l2norm": {"fused": l2norm}})


def crashing(device: torch.device) -> Adapter:
    """A target whose kernel ends the process."""

    def l2norm(x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x

    return Adapter({"l2norm": {"fused": l2norm}})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--minutes", "-1"], "--minutes: -1.0, expected more than 0"),
        (["--examples", "0"], "--examples: 0, expected 1 or more"),
        (["--jobs", "-3"], "--jobs: -3, expected 1 or more"),
        (["--case", "x"], "case: 'x', expected the JSON object of a case"),
        (["--case", _CASE.replace('"H":1,', "")], "case: no H among its dims"),
        (["--op", "l2norm", "--mode", "chunk"], "nothing that is l2norm and chunk"),
        (["--record", "/nowhere/at/all.json"], "expected a file in a folder that exists"),
    ],
)
def test_what_makes_no_run_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_runs_of_neighbouring_seeds_share_no_lap() -> None:
    seeds = {_seed(seed, lap) for seed in range(20) for lap in range(20)}
    assert len(seeds) == 400


def test_an_error_of_a_kernel_is_a_finding_and_no_usage(capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{__name__}:raising"
    assert main(["--target", target, "--case", _CASE, "--law", "differential"]) == 1
    assert "differential: ValueError: head dim 7 is not supported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("raising", "ValueError: head dim 7 is not supported"),
        ("crashing", "the process that ran it ended"),
    ],
)
def test_a_kernel_that_fails_badly_is_reported_with_its_command(
    target: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--target", f"{__name__}:{target}", "--op", "l2norm", "--law", "differential"]
    command += ["--dtype", "float32", "--jobs", "1", "--examples", "10", "--no-shrink"]
    assert main([*command, "--record", str(tmp_path / "worst.json")]) == 1
    printed = capsys.readouterr().out
    assert told in printed
    assert "REPRO: python -m properties.fuzz --law differential --case" in printed
    assert f"--target {__name__}:{target}" in printed
    assert "1 finding" in printed
