"""The hunt: a mutant is killed by laws that look at results, and not by others."""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from properties import ROOT
from properties.cases.case import Case
from properties.catalogue import DTYPES
from properties.device import activate
from properties.jobs import Selection
from properties.mutants import equivalents, hunt
from properties.mutants.__main__ import main
from properties.mutants.equivalents import Equivalent
from properties.mutants.fates import Fate, Fates
from properties.mutants.hunt import Suite, Unit, fate_of, killed_among, units
from properties.mutants.line_coverage import packed
from properties.mutants.mutant import Mutant, mutants
from properties.mutants.survey import Check, Surveys, files_of_tests, of_tests
from properties.planting import fork_pool
from properties.planting.fork_pool import ForkPool, TrialDied
from properties.planting.oracle_cache import OracleCache
from properties.planting.trial import LawAbout, Pinned, Setup, TestAt, pinned_of
from properties.targets import load

pytestmark = pytest.mark.ops("rotary_embedding", "l2norm")

_TURNED = "kernels.position.rotary._rotate"


@pytest.fixture(scope="module")
def signs() -> list[Mutant]:
    """Wrong signs in the rotary kernel."""
    turned = mutants(["kernels"], ["sign"], within={_TURNED})
    assert len(turned) >= 2
    return turned


def _suite(law: str, folder: Path, *dtypes: str, tests: bool = False) -> Suite:
    target = load("ours", activate("auto"))
    jobs = Selection(("rotary_embedding",), (), (law,), dtypes or ("float32",)).jobs(target)
    return Suite(jobs, "auto", folder, 1, tests=tests)


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    suite = _suite("differential", tmp_path_factory.mktemp("telling"))
    yield suite
    suite.close(at_once=True)


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """A suite whose law does not look at results; some of its cases are interleaved."""
    suite = _suite("untouched_inputs", tmp_path_factory.mktemp("blind"), *DTYPES)
    yield suite
    suite.close(at_once=True)


@pytest.fixture
def fates(tmp_path: Path) -> Fates:
    return Fates(tmp_path / "fates.jsonl", fresh=True)


def test_a_wrong_sign_is_killed_by_a_law_that_looks_at_results(
    signs: list[Mutant], telling: Suite, fates: Fates
) -> None:
    for mutant in signs:
        fate = fate_of(mutant, telling, fates)
        assert fate.caught_by == "differential", telling.failing
        check = pinned_of(fate.check)
        assert isinstance(check, LawAbout)
        assert (check.law, check.case.op, check.case.dtype) == (
            "differential", "rotary_embedding", "float32",
        )  # fmt: skip


def test_a_mutant_of_an_oracle_is_killed_by_the_tests_beside_it(
    tmp_path: Path, fates: Fates
) -> None:
    mutant = next(m for m in mutants(["reference"], ["scale"]) if "l2norm" in m.module)
    suite = _suite("differential", tmp_path, tests=True)
    fate = fate_of(mutant, suite, fates)
    suite.close(at_once=True)
    assert fate.caught_by == "reference/norm/test_l2norm.py", suite.failing


def test_an_unnoticed_mutant_survives_every_check(
    signs: list[Mutant], blind: Suite, fates: Fates
) -> None:
    fate = fate_of(signs[0], blind, fates)
    assert fate.caught_by is None
    assert 0 < fate.tried["untouched_inputs"] <= 15
    assert fate.suite == blind.code(signs[0])


def test_listed_mutants_are_checked_together(
    signs: list[Mutant], telling: Suite, blind: Suite, tmp_path: Path
) -> None:
    fates = Fates(tmp_path / "fates.jsonl", fresh=True)
    for suite, killed in ((blind, []), (telling, signs)):
        (unit,) = units(suite, "kernels")
        assert {*killed_among(signs, suite, fates, unit)} == {*killed}


def test_a_mutant_that_ends_its_process_is_found_among_others(
    signs: list[Mutant], blind: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = signs[-1]
    (changed,) = (line[2:] for line in loops.text.splitlines() if line.startswith("+ "))

    def submit(*about: Any, seconds: int) -> "Future[None]":
        edits = about[-1]
        future: Future[None] = Future()
        if any(changed in edit.after for edit in edits):
            future.set_exception(TrialDied(signal.SIGXCPU))
        else:
            future.set_result(None)
        return future

    monkeypatch.setattr(blind.pool, "submit", submit)
    (unit,) = units(blind, "kernels")
    fates = Fates(tmp_path / "fates.jsonl", fresh=True)
    killed = killed_among(signs, blind, fates, unit)
    assert {m: unit.told(failure) for m, failure in killed.items()} == {loops: ("time", unit.name)}


class _Told:
    """A suite of one check, which fails with any of these groups of mutants and records what it
    ran.

    With this suite, edits are the mutants themselves.
    """

    check = TestAt("test_it.py::test_it")

    def __init__(self, *groups: set[Mutant]) -> None:
        self.groups = groups
        self.ran: list[set[Mutant]] = []

    def concerned(self, unit: Unit, those: Sequence[Mutant]) -> list[Mutant]:
        return [*those]

    def fails(self, check: Pinned, those: Sequence[Mutant]) -> bool:
        return any(group <= {*those} for group in self.groups)

    def failures(self, unit: Unit, those: Sequence[Mutant]) -> list[Pinned]:
        self.ran.append({*those})
        return [self.check] if self.fails(self.check, those) else []


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    monkeypatch.setattr(hunt, "combined", lambda mutants: ([*mutants], []))
    return mutants(["kernels"], within={_TURNED})[:4]


def _among(four: list[Mutant], suite: Any, fates: Fates) -> set[Mutant]:
    modules = frozenset(m.module for m in four)
    unit = Unit("test_it.py", "kernels", modules, "code", file="test_it.py")
    return {*killed_among(four, suite, fates, unit)}


def test_a_mutant_that_fails_only_with_another_survives(four: list[Mutant], fates: Fates) -> None:
    a, b, c, d = four
    suite = _Told({a, c}, {d})
    assert _among(four, suite, fates) == {d}
    assert all(any({m} <= ran and not {a, c} <= ran for ran in suite.ran) for m in (a, b, c))
    # If only mutants set apart are left, halves are tried.
    assert _among([a, c], _Told({a, c}), Fates(fates.path, fresh=True)) == set()


def test_survivors_of_a_unit_are_not_tried_on_it_again(four: list[Mutant], fates: Fates) -> None:
    suite = _Told({four[1]})
    for _ in range(2):
        assert _among(four[:3], suite, fates) == {four[1]}
    assert suite.ran == [{*four[:3]}, {four[0], four[2]}, {four[1]}]


def _has_tokens(pinned: Pinned) -> bool:
    return not isinstance(pinned, LawAbout) or (
        sum(pinned.case.lengths) > 0 and 0 not in pinned.case.dims.values()
    )


def test_only_cases_that_run_the_line_are_tried(
    signs: list[Mutant], blind: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the cases may take longer than a mutant is worth.
    monkeypatch.setattr(hunt, "_SPENT", float("inf"))
    checks = [check for job in blind.jobs for check in blind.checks_of(job)]
    branches = mutants(["kernels"], ["branch"], within={_TURNED})
    inside = next(m for m in branches if "INTERLEAVED" in m.text)
    # A call without tokens may launch nothing.
    launching = {c.pinned for c in checks if _has_tokens(c.pinned)}
    assert launching <= {c.pinned for wave in blind.waves(inside) for c in wave.checks()}
    pairs = next(m for m in signs if "tl.join" in m.text)
    reaching = [c.pinned for wave in blind.waves(pairs) for c in wave.checks()]
    options = [pinned.case.options for pinned in reaching if isinstance(pinned, LawAbout)]
    assert 0 < len(options) < len(checks)
    assert all(given["interleaved"] for given in options)


def test_a_line_that_16_bits_alone_run_is_tried_in_them(
    signs: list[Mutant], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = _suite("differential", tmp_path, "float32", "bfloat16")
    mutant = signs[0]
    case = Case(op="rotary_embedding", mode="fused", dtype="bfloat16", dims={}, lengths=(1,))
    check = Check(
        LawAbout("differential", case), 1.0, packed({mutant.path.as_posix(): {*mutant.lines}})
    )
    monkeypatch.setattr(suite, "checks_of", lambda job: [check] * (job.dtype == "bfloat16"))
    assert [c for wave in suite.waves(mutant) for c in wave.checks()] == [check, check]
    (unit,) = units(suite, "kernels")
    assert suite.concerned(unit, [mutant]) == [mutant]


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_command_tells_kept_and_listed_mutants(
    signs: list[Mutant],
    blind: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed, report = tmp_path / "equivalents.toml", tmp_path / "mutants.json"
    listed.write_text("")
    sources = {p: p.read_bytes() for p in (ROOT / "kernels").rglob("*.py")}
    command = ["--op", "rotary_embedding", "--law", "untouched_inputs", "--dtype", "bfloat16"]
    command += ["--dtype", "float16"]
    # This folder has the surveys of a suite with the same law.
    command += ["--within", _TURNED, "--operator", "sign", "--cache", str(blind.folder)]
    command += ["--jobs", "1", "--equivalents", str(listed), "--json", str(report)]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(signs)} mutants; 1 processes\n")
    assert f"mutants: {len(signs)} of {len(signs)}, {len(signs)} survive\n" in printed
    assert f"kernels/position/rotary.py:{signs[0].line} sign" in printed
    assert "tried: untouched_inputs" in printed
    assert {row["state"] for row in json.loads(report.read_text())} == {"survives"}

    assert main(command) == 1
    assert f"{len(signs)} of them known" in capsys.readouterr().out

    with monkeypatch.context() as full:
        full.setattr("properties.mutants.__main__.write_atomically", _refuse)
        assert main(command) == 1
    printed = capsys.readouterr().out
    assert "--json not written: [Errno 28] No space left on device" in printed

    listed.write_text(_list(signs))
    assert main(command) == 0
    assert f"{len(signs)} equivalent, 0 survive" in capsys.readouterr().out
    assert main([*command, "--listed"]) == 0
    assert sources == {p: p.read_bytes() for p in (ROOT / "kernels").rglob("*.py")}


def test_listed_equivalents_are_tried_on_request(
    signs: list[Mutant], telling: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "equivalents.toml"
    listed.write_text(_list(signs))
    command = ["--op", "rotary_embedding", "--law", "differential", "--dtype", "float32"]
    command += ["--within", _TURNED, "--operator", "sign", "--cache", str(telling.folder)]
    command += ["--jobs", "1", "--equivalents", str(listed)]
    assert main(command) == 0
    assert "listed and killed" not in capsys.readouterr().out
    assert main([*command, "--listed"]) == 1
    assert f"listed and killed: {_TURNED}" in capsys.readouterr().out


def _list(mutants: list[Mutant]) -> str:
    changes = ",\n".join(f"'''\n{m.text}'''" for m in mutants)
    return f'[[equivalent]]\nfunction = "{_TURNED}"\nchanges = [{changes}]\nreason = "why"\n'


def test_an_entry_of_no_mutant_is_stale(signs: list[Mutant], tmp_path: Path) -> None:
    path = tmp_path / "equivalents.toml"
    path.write_text(_list(signs).replace("cos", "tan", 1))
    entries = equivalents.read(path)
    found, stale = equivalents.match(entries, signs)
    assert len(found) == len(signs) - 1
    assert [e.function for e in stale] == [_TURNED]
    assert "tan" in stale[0].change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[equivalent]]\nfunction = "f"\nchanges = ["- a\\n+ b"]\n', "a reason"),
        ('[[equivalent]]\nfunction = "f"\nchanges = ["- a"]\nreason = " "\n', "a reason"),
        ('[[equivalent]]\nfunction = "f"\nchanges = ["- a", "- a"]\nreason = "r"\n', "twice"),
    ],
)
def test_a_malformed_list_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "equivalents.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        equivalents.read(path)


def test_the_list_names_mutants_that_exist() -> None:
    entries = equivalents.read()
    listed = {entry.function for entry in entries}
    _, stale = equivalents.match(entries, mutants(within=listed))
    assert stale == []
    assert all(isinstance(entry, Equivalent) for entry in entries)


def test_a_kill_is_kept_and_a_survivor_only_as_long_as_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "fates.jsonl"
    fates = Fates(path, fresh=False)
    fates.add(Fate("dead", "differential", suite="old"))
    fates.add(Fate("alive", None, suite="old"))
    path.write_text(path.read_text() + '{"key": "cut o')
    again = Fates(path, fresh=False)
    assert again.get("dead", "new") is not None
    assert again.get("alive", "old") is not None
    assert again.get("alive", "new") is None
    assert Fates(path, fresh=True).get("dead", "old") is None


def test_a_fate_that_cannot_be_kept_ends_no_run(tmp_path: Path) -> None:
    path = tmp_path / "fates.jsonl"
    path.write_bytes(b"\xff\n")
    fates = Fates(path, fresh=False)
    path.unlink()
    path.mkdir()
    fates.add(Fate("dead", "differential", suite="old"))
    assert fates.get("dead", "new") is not None
    assert "Is a directory" in fates.unwritten


@pytest.mark.parametrize("text", ["[]", '{"code": "same", "checks": [3]}', '{"cod'])
def test_a_survey_that_is_damaged_is_made_anew(text: str, tmp_path: Path) -> None:
    surveys = Surveys(tmp_path)
    surveys.keep("of tests", "same", [])
    assert surveys.known("of tests", "same") == []
    (kept,) = (tmp_path / "surveys").iterdir()
    kept.write_text(text)
    assert surveys.known("of tests", "same") is None


def test_a_survey_that_cannot_be_kept_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "surveys").touch()
    surveys = Surveys(tmp_path)
    surveys.keep("of tests", "same", [])
    assert surveys.known("of tests", "same") is None


def _imported_anew(path: str, folder: Path) -> bool:
    import kernels

    assert of_tests(path, "kernels", Setup("ours", "auto"), folder)
    return sys.modules["kernels"] is not kernels


def test_a_survey_runs_tests_beside_a_package_imported_anew(blind: Suite, tmp_path: Path) -> None:
    """A trial imports modules anew; a test that fails from that alone would kill every mutant."""
    assert blind.pool.submit(_imported_anew, "kernels/test_auto_mode.py", tmp_path).result()


def test_every_test_of_the_suite_about_kernels_is_tried() -> None:
    files = [*files_of_tests("kernels")]
    assert "properties/suite/test_wrappers.py" in files
    assert "properties/suite/test_laws.py" not in files


def test_a_trial_that_dies_or_loops_raises() -> None:
    with ForkPool([]) as pool:
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result()
        with pytest.raises(TrialDied) as ended:
            pool.submit(exec, "import os; os._exit(3)").result()
        assert not ended.value.of_time
        with pytest.raises(TrialDied) as looped:
            pool.submit(exec, "while True: pass", seconds=1).result()
        assert looped.value.of_time
        assert pool.submit(divmod, 7, 2).result() == (3, 1)


def test_a_trial_that_sleeps_ends_as_one_that_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_pool, "_ASLEEP", 0.5)
    with ForkPool([]) as pool:
        with pytest.raises(TrialDied) as slept:
            pool.submit(exec, "import time; time.sleep(1000)", seconds=1).result(60)
        assert slept.value.of_time
        assert pool.submit(divmod, 7, 2).result() == (3, 1)


def test_an_answer_waits_for_no_process_that_a_trial_has_forked() -> None:
    forking = "import os, time\nif os.fork() == 0: time.sleep(1000)\n"
    with ForkPool([]) as pool:
        assert pool.submit(exec, forking).result(60) is None
        with pytest.raises(TrialDied) as ended:
            pool.submit(exec, f"{forking}os._exit(3)").result(60)
        assert not ended.value.of_time


def test_an_unused_pool_starts_no_process() -> None:
    with ForkPool(["no.such.module"]):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    with ForkPool([], workers=2) as pool:
        first = pool.submit(os.getppid).result()
        assert str(first) not in children
        assert pool.submit(os.getppid).result() == first


def test_closing_a_pool_at_once_ends_its_trials() -> None:
    pool = ForkPool([])
    pid = pool.submit(os.getppid).result()
    pool.submit(time.sleep, 600)
    pool.close(at_once=True)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert not children.exists() or not children.read_text()


@pytest.mark.parametrize("stride", [1, 2])
def test_one_element_is_remembered_whatever_its_stride(stride: int, tmp_path: Path) -> None:
    memory = OracleCache(tmp_path, {"l2norm": "code"})
    answers = iter((1, 2))
    for value in (3.0, 3.0, 4.0):
        x = torch.full((2,), value, dtype=torch.bfloat16).as_strided((1, 1), (stride, stride))
        answer = memory(("l2norm", x), lambda: next(answers))
        assert answer == (1 if value == 3 else 2)


def test_a_damaged_answer_of_an_oracle_is_computed_anew(tmp_path: Path) -> None:
    """An error of the cache would count as a kill."""
    remember = OracleCache(tmp_path, {"l2norm": "code"})
    assert remember(("l2norm",), lambda: 1) == 1
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    kept.write_bytes(b"\0" * 100)
    assert remember(("l2norm",), lambda: 2) == 2
    assert remember(("l2norm",), lambda: 3) == 2


def test_an_answer_of_an_oracle_that_cannot_be_kept_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("properties.planting.oracle_cache.write_atomically", _refuse)
    assert OracleCache(tmp_path, {"l2norm": "code"})(("l2norm",), lambda: 1) == 1
