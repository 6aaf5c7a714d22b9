"""Shares of killed mutants are counted, kept by module, and refused if incomplete."""

import errno
import os
from pathlib import Path

import pytest

from properties.mutants import __main__ as command
from properties.mutants import shares
from properties.mutants.__main__ import main
from properties.mutants.equivalents import Equivalent
from properties.mutants.fates import Fate
from properties.mutants.mutant import Mutant, mutants_of
from properties.mutants.scoreboard import Scoreboard
from properties.mutants.shares import Share, read, whole, write
from properties.planting.closure import path_of
from properties.planting.source import Source

_MODULE = "reference.norm.l2norm"


@pytest.fixture(scope="module")
def some() -> list[Mutant]:
    path = path_of(_MODULE)
    assert path is not None
    return mutants_of(_MODULE, Source(path.read_text()))[:5]


def test_each_mutant_counts_once(some: list[Mutant]) -> None:
    killed, survives, listed, elsewhere, _ = some
    fates = {
        killed.key: Fate(killed.key, "differential"),
        survives.key: Fate(survives.key, None),
    }
    entry = {listed.key: Equivalent(listed.where, listed.text, "a reason")}
    scoreboard = Scoreboard(some, entry, frozenset([elsewhere.key]), fates)
    share = Share(mutants=5, killed=1, equivalent=1, elsewhere=1)
    assert scoreboard.shares() == {_MODULE: share}


def test_shares_survive_their_file(tmp_path: Path) -> None:
    known = {"kernels.b": Share(7, 6, equivalent=1), "kernels.a": Share(2, 1, elsewhere=1)}
    write(tmp_path / "shares.json", known)
    assert read(tmp_path / "shares.json") == known
    assert read(tmp_path / "none.json") == {}


@pytest.mark.parametrize("text", ["", "[]", '{"kernels.a": {"mutant": 1}}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "shares.json").write_text(text)
    with pytest.raises(ValueError, match="expected a file that --record wrote"):
        read(tmp_path / "shares.json")


def test_only_modules_of_which_all_is_tried_are_recorded(some: list[Mutant]) -> None:
    assert whole({_MODULE: Share(5, 4)}, some)[_MODULE] == Share(5, 4)
    assert _MODULE not in whole({_MODULE: Share(4, 4)}, some)
    assert _MODULE not in whole({}, some)
    # Only declarations, nothing to mutate.
    assert whole({}, some)["kernels.delta.kda"] == Share(0, 0)


def test_a_record_that_a_full_disk_refuses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(command, "mutants", lambda *_, **__: [])
    monkeypatch.setattr(command, "_run", lambda *_: (Scoreboard([], {}, frozenset()), 0))
    monkeypatch.setattr(shares, "write_record", refuse)
    assert main(["--cache", str(tmp_path), "--record", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "--record not written: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("option", ["op", "mode", "law", "dtype", "operator"])
def test_a_part_of_the_suite_is_not_recorded(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"op": "l2norm", "mode": "fused", "law": "packing", "dtype": "float32"}
    given = [f"--{option}", value.get(option, "sign")]
    command = ["--cache", str(tmp_path), "--record", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        main([*command, *given])
    assert f"--record: not allowed with --{option}" in capsys.readouterr().err
