"""Fixtures that run the command on one small op, in a temporary folder."""

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from properties.fuzz import planted
from properties.fuzz.__main__ import main
from properties.fuzz.fork_server import prepare

Fuzz = Callable[..., tuple[int, str]]


def under_differential(target: str, *more: str) -> list[str]:
    """The arguments of a run of a planted target under one law."""
    return ["--target", f"{planted.__name__}:{target}", "--law", "differential", *more]


def on_l2norm(target: str, *more: str) -> list[str]:
    """The arguments of a short run with a planted target."""
    chosen = ["--op", "l2norm", "--dtype", "float32", "--jobs", "1"]
    return under_differential(target, *chosen, *more)


@pytest.fixture(autouse=True)
def _nothing_old_to_collect() -> Iterator[None]:
    """Hypothesis collects garbage in each new thread, which takes half a second in a whole run."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fuzz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Fuzz:
    """Run the command on a planted target; return its exit code and output."""
    prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(target: str, *more: str) -> tuple[int, str]:
        wanted: Sequence[str] = () if {"--examples", "--minutes"} & {*more} else ("--examples", "5")
        code = main(on_l2norm(target, *wanted, *more))
        return code, capsys.readouterr().out

    return run
