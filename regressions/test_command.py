"""`python -m regressions` says what happened, on its first line and with its exit code."""

from dataclasses import replace

import pytest

from properties.planting.edit import Edit
from regressions import __main__ as command
from regressions.linear import BUGS


@pytest.mark.ops("linear_attn")
def test_a_bug_that_is_missed_or_cannot_be_planted_is_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = BUGS["fused_chunk_negative_scale"]
    harmless = Edit("kernels.scale", "return float(scale)", "return 1.0 * float(scale)")
    stale = Edit("kernels.scale", "no such line", "")
    bugs = {
        "linear.right": bug,
        "linear.missed": replace(bug, planted=harmless),
        "linear.stale": replace(bug, planted=stale),
        "softmax.not_asked_for": bug,
    }
    monkeypatch.setattr(command, "known_bugs", lambda: bugs)
    assert command.main(["linear", "--device", "simulator", "--jobs", "1"]) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("1 of 3 known bugs hold as the code stands and are caught when planted")
    assert "linear.missed is not caught when it is planted" in rest
    assert any(line.startswith("linear.stale could not be tried: before:") for line in rest)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["linear", "no.such.bug"], "NAME: 'no.such.bug', expected the start of a known bug's"),
        (["--target", "oracle"], "--target: expected with --module, which says whose bugs"),
        (["--device", "cuda"], "device: 'cuda', but torch finds no GPU"),
    ],
)
def test_arguments_that_make_no_run_are_refused(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
    assert told in capsys.readouterr().err
