"""The grammar lists what is promised, and planting finds what laws judge."""

import errno
import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from rich.console import Console

from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.catalogue import OPS
from properties.device import activate
from properties.files import write_record
from properties.jobs import Job, Selection, hypothesis_test
from properties.laws import LAWS, Law, Subject
from properties.mutants.__main__ import main
from properties.mutants.triggers import run
from properties.mutants.triggers.grammar import Atom, Between, among, atoms, pairs
from properties.mutants.triggers.planting import Reach, explore
from properties.mutants.triggers.recording import Evaluation, Witness, hollow, record
from properties.table import table
from properties.targets import load
from properties.targets.ours import Ours


@pytest.fixture(scope="module")
def ours() -> Ours:
    target = load("ours", activate("simulator"))
    assert isinstance(target, Ours)
    return target


@pytest.fixture(scope="module")
def subject(ours: Ours) -> Subject:
    return Subject(Witness(ours), torch.device("cpu"), quick=True)


@pytest.fixture(scope="module")
def of_gla(ours: Ours) -> list[Atom]:
    return atoms(OPS["gla"], ours)


@pytest.fixture(scope="module")
def pairs_of_gla(of_gla: list[Atom]) -> Any:
    return pairs(OPS["gla"], of_gla)


def test_the_grammar_lists_the_promises_of_an_op(of_gla: list[Atom]) -> None:
    texts = [atom.text for atom in of_gla]
    assert len(set(texts)) == len(texts)
    assert set(texts) >= {
        "K = 256",
        "V in 129..255",
        "K < V",
        "T = 4096",
        "T modulo its tile = -1",
        "N >= 33",
        "an empty middle sequence",
        "no gv",
        "initial_state alone trained",
        "final_state not asked for",
        "inference_mode",
        "scale: -1.0",
        "q stride 0 of tokens",
        "g float32 beside 16 bits",
        "g of -inf",
        "dinitial_state is wrong",
    }


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("wide K", "small V", 1),
        ("wide K", "g transposed", 1),
        ("wide K", "initial_state alone trained", 0),
        ("q past 256", "v past 256", 0),
        ("q past 256", "reverse: True", 0),
        ("q past 256", "scale: -1", 1),
        ("q past 256", "scale: an int", 0),
        ("q past 256", "v transposed", 0),
        ("q transposed", "v transposed", 0),
        ("128 < V < K", "small K", 0),
        ("wide K", "small K", 0),
        ("K = 256", "small V", 0),
        ("reverse: True", "mode chunk", 0),
        ("no_grad", "dq is wrong", 0),
        ("no g", "dg is wrong", 0),
        ("no rows", "q transposed", 0),
        ("o is wrong", "q alone trained", 0),
        ("T = 64", "T modulo its tile = 1", 0),
        ("T = 65", "T modulo its tile = 1", None),
        ("wide K", "chunks >= 33", -1),
    ],
)
def test_pairs_contain_only_compatible_atoms(
    one: str, other: str, kind: int | None, of_gla: list[Atom], pairs_of_gla: Any
) -> None:
    texts = [atom.text for atom in of_gla]
    if kind is None:
        assert one not in texts
        return
    i, j = sorted((texts.index(one), texts.index(other)))
    assert pairs_of_gla[i, j] == kind


def test_cases_are_those_of_our_kernels(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, "packing", Law("packing", lambda run: 0.0))
    job = Job("attention", "parallel", "packing", "bfloat16")
    drawn: list[list[Case]] = []
    for target in (ours, Witness(ours)):
        seen: list[Case] = []
        subject = Subject(target, torch.device("cpu"))
        ci = settings.get_profile("ci")
        ci(hypothesis_test(job, subject, announce=seen.append))()
        drawn.append(seen)
    assert len(drawn[0]) >= ci.max_examples
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.modes])
def test_zeros_obey_the_laws_and_calls_of_each_op_can_be_described(
    name: str, subject: Subject, ours: Ours
) -> None:
    op = OPS[name]
    calls = []
    # Ops take turns with laws.
    place = list(OPS).index(name) % 3
    for law in {"differential", *op.laws[place::3]} - {"rejection"}:
        job = Job(name, op.modes[0].name, law, "float32")
        calls += [call for one in record(job, subject, 2) for call in one.calls]
    every = atoms(op, ours)
    held = {atom.text for atom in every for call in calls if atom.holds(call)}
    assert {"float32", f"{op.outputs[0].name} is wrong"} <= held
    assert (pairs(op, every[::3]) == 1).any()


def test_each_call_is_recorded_in_its_context(subject: Subject) -> None:
    job = Job("l2norm", "fused", "context_invariance", "float32")
    made = record(job, subject, 40, seed=1)
    assert {call["context"] for one in made for call in one.calls} == {*CONTEXTS}


def test_rules_of_an_earlier_call_are_built(subject: Subject) -> None:
    case = Case.of(
        "attention",
        "parallel",
        {"B": 1, "G": 1, "R": 1, "K": 2, "V": 3},
        (4,),
        options={"structure": None},
        earlier={"structure": {"prefix": [2]}},
    )
    witness = subject.target
    assert isinstance(witness, Witness)
    calls = witness.start()
    with witness.eager():
        LAWS["differential"](OPS["attention"], case, subject)
    # The earlier call, the call itself, and the one before its backward pass.
    assert [call["structure"] for call in calls] == ["rules", "None", "None"]
    assert witness.beside == [1, 1]


SOME = Atom("tokens", "T", "some tokens", {"T": Between(1)})
NONE = Atom("empties", "empties", "no tokens", {"T": among(0)})
FAR = Atom("sizes", "D", "a dim past what is drawn", {"D": Between(10**6)})
STATE = Atom("results", "result", "", {"result final_state": among(True)}, result="final_state")


def _explored(laws: tuple[str, ...], subject: Subject) -> Reach:
    made: list[Evaluation] = []
    for law in laws:
        job = Job("short_conv", "fused", law, "float32")
        made += record(job, subject, 12)
    reach = Reach.of(hollow(OPS["short_conv"]), [SOME, NONE, FAR, STATE])
    explore(reach, made, subject)
    return reach


def test_judged_predicates_are_reached_and_undrawn_ones_are_not(subject: Subject) -> None:
    reach = _explored(("exactness", "differential"), subject)
    assert reach.reached.diagonal().tolist() == [True, True, False, True]
    assert reach.reached[0, 3]
    assert not reach.reached[0, 2]
    assert not reach.held[2, 2]


def test_predicates_wrong_in_all_calls_alike_are_not_reached(subject: Subject) -> None:
    reach = _explored(("determinism",), subject)
    assert reach.held[0, 0]
    assert not reach.reached[0, 0]


def test_the_command_lists_missing_predicates_and_records_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / "missing.json"
    given = ["--triggers", "--op", "l2norm", "--law", "differential", "--dtype", "float32"]
    assert main([*given, "--json", str(listing)]) == 0
    assert "l2norm: not reached" in capsys.readouterr().out
    missing = json.loads(listing.read_text())["l2norm"]
    assert "bfloat16" in missing["atoms"]["dtypes"]
    assert "float32" not in missing["atoms"]["dtypes"]
    with pytest.raises(SystemExit, match="2"):
        main([*given, "--record", str(tmp_path)])
    assert "--record: not allowed with --law" in capsys.readouterr().err


def test_files_that_a_full_disk_refuses_are_told(
    ours: Ours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run, "write_atomically", refuse)
    monkeypatch.setattr(run, "write_record", refuse)
    given = Selection(ops=("l2norm",), laws=("determinism",), dtypes=("float32",))
    console, files = Console(file=(out := StringIO())), {"listing": tmp_path, "folder": tmp_path}
    assert run.measure_all(given, ours, torch.device("cpu"), console, nights=0, **files) == 1
    assert out.getvalue().splitlines()[-2:] == [
        "--json not written: [Errno 28] No space left on device",
        "--record not written: [Errno 28] No space left on device",
    ]


def test_shares_survive_their_file_and_stand_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "gla": {"predicates": 2000, "ci": 1999, "night": 2000},
        "dplr": {"predicates": 3, "ci": 2},
    }
    write_record(tmp_path / "triggers.json", known)
    assert run.read(tmp_path / "triggers.json") == known
    assert run.read(tmp_path / "none.json") == {}
    (tmp_path / "triggers.json").write_text('{"gla": {}}')
    with pytest.raises(ValueError, match="expected a file that --triggers --record wrote"):
        run.read(tmp_path / "triggers.json")
    monkeypatch.setattr(run, "read", lambda: known)
    rows = {line.split("`")[1]: line for line in table().splitlines() if line.startswith("| `")}
    assert rows["gla"].endswith("| 99.9, 100.0 |")
    assert rows["dplr"].endswith("| 66.6 |")
    assert rows["kda"].endswith("|  |")


def test_pairs_use_one_half_of_their_matrix(ours: Ours) -> None:
    wanted = pairs(OPS["l2norm"], atoms(OPS["l2norm"], ours))
    assert np.array_equal(wanted, np.triu(wanted, 1))
