"""Killers are recorded by function, read again, and tried first if they pass without a mutant."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from properties import ROOT
from properties.cases.case import Case
from properties.device import activate
from properties.jobs import Selection
from properties.mutants import killers
from properties.mutants.__main__ import main
from properties.mutants.fates import Fate, Fates
from properties.mutants.hunt import Suite, Wave, fate_of
from properties.mutants.mutant import PACKAGES, Mutant, mutants
from properties.mutants.scoreboard import Scoreboard
from properties.planting.trial import LawAbout, TestAt, attempt, pinned_of
from properties.targets import load

pytestmark = pytest.mark.ops("rotary_embedding", "l2norm")

_TURNED = "kernels.position.rotary._rotate"
_CASE = Case(
    op="rotary_embedding", mode="fused", dtype="float32", dims={"B": 1, "H": 2, "P": 4, "D": 9},
    lengths=(3,), options={"interleaved": True},
)  # fmt: skip
_LAW = LawAbout("differential", _CASE)
_OF_AN_ORACLE = "test_the_scaled_form_takes_vectors_whose_squares_overflow"
_TEST = TestAt("kernels/position/test_rotary.py::test_it[a b]")


@pytest.mark.parametrize("pinned", [_LAW, _TEST])
def test_a_check_prints_as_one_line(pinned: LawAbout | TestAt) -> None:
    assert pinned_of(str(pinned)) == pinned
    assert "\n" not in str(pinned)


@pytest.mark.parametrize("text", ["", "gla-chunk", "differential", "differential {}"])
def test_text_that_names_no_check_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="case"):
        pinned_of(text)


def test_killers_survive_their_file(tmp_path: Path) -> None:
    recorded = {
        "kernels.a.f": Counter({str(_LAW): 2, str(_TEST): 3}),
        "kernels.a.g": Counter({str(_LAW): 1}),
    }
    killers.write(tmp_path / "killers.json", recorded)
    assert killers.read(tmp_path / "killers.json") == recorded
    assert killers.read(tmp_path / "none.json") == {}
    assert killers.ranked(recorded["kernels.a.f"]) == [_TEST, _LAW]


@pytest.mark.parametrize("text", ["", "[]", '{"gla-chunk": {}}', '{"a.py::b": {"f": "g"}}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "killers.json").write_text(text)
    with pytest.raises(ValueError, match="expected a file that --record wrote"):
        killers.read(tmp_path / "killers.json")


def test_recorded_functions_have_mutants_and_recorded_tests_exist() -> None:
    known = killers.joined(killers.read(), killers.read(killers.SEMANTIC_PATH))
    assert known.keys() == {mutant.where for mutant in mutants(PACKAGES, within=known)}
    pinned = {one for checks in known.values() for one in killers.ranked(checks)}
    nodes = {one.node for one in pinned if isinstance(one, TestAt)}
    files = sorted({node.partition("::")[0] for node in nodes})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert nodes - {*listed.stdout.splitlines()} == set()


def test_only_modules_of_which_all_is_tried_are_replaced() -> None:
    one, two = Counter({str(_LAW): 1}), Counter({str(_TEST): 1})
    known = {"kernels.a.f": one, "kernels.a.g": one, "kernels.ab.f": one, "kernels.ab.gone": one}
    new = {"kernels.a.f": two, "kernels.ab.f": two}
    assert killers.replaced(known, new, ["kernels.a"], [*known][:3]) == {
        "kernels.a.f": two,
        "kernels.ab.f": one,
    }


def test_the_scoreboard_counts_checks_that_can_be_run_again() -> None:
    four = mutants(["kernels"], within={_TURNED})[:4]
    results = [("differential", str(_LAW)), ("time", "rotary_embedding-fused"), (None, "")]
    fates = {m.key: Fate(m.key, by, check) for m, (by, check) in zip(four, results, strict=False)}
    scoreboard = Scoreboard(four, {}, frozenset(), fates)
    assert scoreboard.killers() == {four[0].where: Counter({str(_LAW): 1})}


@pytest.fixture(scope="module")
def sign() -> Mutant:
    return mutants(["kernels"], ["sign"], within={_TURNED})[0]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """A suite with four recorded killers of a function: one fails without a mutant, one no longer
    exists, one is not selected, and one looks at results.
    """
    target = load("ours", activate("auto"))
    jobs = Selection(("rotary_embedding",), (), ("differential",), ("float32",)).jobs(target)
    refused = LawAbout("differential", Case(**{**vars(_CASE), "tile": 99}))
    gone = TestAt("kernels/position/test_rotary.py::test_that_is_no_more")
    other = LawAbout("untouched_inputs", _CASE)
    before = Counter({str(refused): 9, str(gone): 8, str(other): 7, str(_LAW): 1})
    folder = tmp_path_factory.mktemp("suite")
    suite = Suite(jobs, "auto", folder, 1, killers={_TURNED: before})
    yield suite
    suite.close(at_once=True)


def test_recorded_killers_that_pass_are_tried_first(
    sign: Mutant, suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = suite.waves(sign)
    assert [check.pinned for check in first.checks()] == [_LAW]
    monkeypatch.setattr(suite, "waves", lambda mutant: iter([first]))
    fate = fate_of(sign, suite, Fates(tmp_path / "fates.jsonl", fresh=True))
    assert (fate.caught_by, fate.check) == ("differential", str(_LAW))


def test_cases_and_tests_are_tried_in_one_process(sign: Mutant, suite: Suite) -> None:
    pinned = TestAt(f"reference/norm/test_l2norm.py::{_OF_AN_ORACLE}"), _LAW
    for edits, found in (([], (None, 2)), ([sign.edit()], ("differential", 1))):
        # In another process, since it imports modules anew.
        future = suite.pool.submit(attempt, pinned, (60.0, 60.0), suite.setup, edits)
        outcome = future.result()
        assert (outcome.caught_by, outcome.number) == found


def test_a_function_without_recorded_killers_is_tried_like_any(suite: Suite) -> None:
    other = mutants(["kernels"], within={"kernels.position.rotary._launch"})[0]
    waves: list[Wave] = [*suite.waves(other)]
    assert waves[0].name == "numbers"


def test_killers_are_recorded_in_an_existing_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SystemExit, match="2"):
        main(["--cache", str(tmp_path), "--record", str(missing)])
    assert f"--record: {missing}, expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--target", "oracle"], "--target: 'oracle', not allowed without --module"),
        (["--night", "3"], "--night: not allowed without --triggers"),
        (["--triggers", "--semantic"], "--semantic: not allowed with --triggers, which"),
        (["--triggers", "--within", "kernels"], "--within: not allowed with --triggers"),
        (["--triggers", "--target", "oracle"], "--target: 'oracle', expected 'ours' with"),
    ],
)
def test_options_of_another_way_to_run_are_rejected(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--cache", str(tmp_path), *given])
    printed = capsys.readouterr()
    assert told in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--json", "a file in a folder that exists"), ("--equivalents", "a file that can be read")],
)
def test_a_file_is_checked_before_the_run(
    option: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing" / "file"
    with pytest.raises(SystemExit, match="2"):
        main(["--cache", str(tmp_path), option, str(missing)])
    assert f"{option}: '{missing}', expected {expected}" in capsys.readouterr().err
