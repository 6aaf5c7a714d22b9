"""The parts of the tuner that need no GPU: candidates, their checks, and the search with a fake
timer.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import kernels
from kernels.tiles import TABLE, Entry, Tile
from properties.aot.launches import record
from properties.aot.worker import CompilerProcess
from properties.architectures import ARCHITECTURES
from properties.cases.calls import outputs_and_gradients
from properties.cases.tensors import build, build_cotangents
from properties.catalogue import OPS
from properties.device import activate
from properties.tune import __main__ as command
from properties.tune import trial
from properties.tune.grids import STAGES, Stage
from properties.tune.search import Best, Candidate, Search
from properties.tune.trial import Problem, TrialResult

# Those of STAGES.
pytestmark = pytest.mark.ops(
    "attention", "delta_rule", "dplr", "gated_delta_rule", "gla", "kda", "linear_attn", "simple_gla"
)

# Tiles are chosen on a CPU as on Hopper.
HOPPER = torch.device("cpu")
ATTENTION = Problem("attention", "parallel", 64, "bfloat16", 1, 64, 64, drawn=1)
LINEAR = Problem("linear_attn", "chunk", 16, "bfloat16", 1, 64, 16, drawn=1)


class Inline(Executor):
    """Runs tasks at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _search(**given: Any) -> Search:
    """A search in which everything compiles, and a tile takes as long as it has tokens and keys."""

    def judged(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
        tile = stage.tile(entry)
        return TrialResult(times=(float(tile.tokens + tile.keys),) * len(stage.passes))

    good = {
        "compiled": lambda *_: TrialResult(),
        "ruled": lambda *_: TrialResult(),
        "judged": judged,
        "device": HOPPER,
    }
    return Search(Inline(), Inline(), **{**good, **given})


def test_the_marker_names_the_ops_that_have_stages() -> None:
    assert set(pytestmark.args) == {op for op, _ in STAGES}


@pytest.mark.parametrize("row", STAGES)
@pytest.mark.parametrize("dim", [32, 64, 128, 256])
def test_an_op_and_mode_has_at_most_60_candidates(row: tuple[str, str], dim: int) -> None:
    problem = Problem(*row, dim, "bfloat16")
    entry = problem.entry(HOPPER)
    counts = [len(stage.candidates(entry, dim)) for stage in STAGES[row]]
    assert min(counts) > 1
    assert sum(counts) <= 60


def test_the_fastest_measured_tiles_are_among_the_candidates() -> None:
    forward, dq, dkv, *_ = STAGES["attention", "parallel"]
    assert Tile(64, 64, num_stages=3) in forward.grid(64)
    assert Tile(64, 32, num_stages=3) in forward.grid(128)
    assert Tile(128, 128, num_warps=8, num_stages=3) in forward.grid(128)
    assert Tile(64, 64, num_stages=3) in dq.grid(64)
    assert Tile(64, 128, num_stages=1) in dkv.grid(64)


def test_a_candidate_differs_from_the_entry_in_the_tile_of_the_stage_alone() -> None:
    entry = ATTENTION.entry(HOPPER)
    own, dq, *_ = STAGES["attention", "parallel"]
    for stage in (own, dq):
        first, *others = stage.candidates(entry, 64)
        assert first == entry
        for candidate in others:
            assert stage.tile(candidate) != stage.tile(entry)
            assert stage.with_tile(candidate, stage.tile(entry)) == entry


def test_tiles_of_single_kernels_have_the_chunk_of_their_entry() -> None:
    for row, stages in STAGES.items():
        if row[1] == "parallel":
            continue
        entry = replace(TABLE[row][0], tokens=64)
        for stage in stages[1:]:
            tiles = [stage.tile(candidate) for candidate in stage.candidates(entry, 64)[1:]]
            assert {tile.tokens for tile in tiles} <= {64}


def test_the_search_finds_the_fastest_and_tells_it_beside_todays() -> None:
    found = list(_search().run([ATTENTION], ["entry", "dq"]))
    of_entry = [f for f in found if isinstance(f, Candidate) and f.kernel == "entry"]
    today = [f for f in of_entry if f.today]
    assert [f.ratio for f in today] == [1.0]
    assert today[0].entry == ATTENTION.entry(HOPPER)
    first, second = (f for f in found if isinstance(f, Best))
    assert (first.entry.tokens, first.entry.keys) == (64, 32)
    assert first.ratio == (64 + 32) / (64 + 64)
    # The second stage starts from the best of the first.
    assert replace(second.entry, kernels={}) == replace(first.entry, kernels={})
    assert second.entry.of("dq").keys == 32


def test_wrong_candidates_are_reported_and_do_not_stop_the_search() -> None:
    def compiled(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
        return TrialResult(wrong="too much shared memory" if entry.num_stages == 4 else "")

    def ruled(problem: Problem, entry: Entry) -> TrialResult:
        return TrialResult(wrong="it spills" if (entry.tokens, entry.keys) == (64, 32) else "")

    found = list(_search(compiled=compiled, ruled=ruled).run([ATTENTION], ["entry"]))
    refused = [f for f in found if isinstance(f, Candidate) and f.result.wrong]
    assert {f.tile.num_stages for f in refused} == {4}
    *candidates, best = found
    assert isinstance(best, Best)
    assert (best.entry.tokens, best.entry.keys) == (64, 64)
    assert {why for _, why in best.ruled_out} == {"it spills"}
    text = command.ranking(best, [f for f in candidates if isinstance(f, Candidate)])
    assert "refused  tokens=64, keys=32, num_warps=4, num_stages=4: too much shared memory" in text
    assert "it spills" in text


def test_the_entry_stays_if_every_candidate_spills() -> None:
    found = list(_search(ruled=lambda *_: TrialResult(wrong="it spills")).run([ATTENTION], ["dq"]))
    best = found[-1]
    assert isinstance(best, Best)
    assert best.entry == ATTENTION.entry(HOPPER)
    assert not best.taken
    candidates = [f for f in found if isinstance(f, Candidate)]
    assert command.ranking(best, candidates).endswith("the entry stays as it was")


def test_a_budget_ends_the_search() -> None:
    search = _search(until=0.0)
    assert list(search.run([ATTENTION])) == []
    assert search.ended


def test_several_problems_are_each_searched_through() -> None:
    problems = [replace(LINEAR, dim=dim) for dim in (16, 32, 64)]
    found = [f for f in _search().run(problems) if isinstance(f, Best)]
    assert {(f.problem.dim, f.kernel) for f in found} == {
        (dim, kernel)
        for dim in (16, 32, 64)
        for kernel in ("entry", "states", "outputs", "gradients")
    }


def test_a_search_of_one_chunk_length_ends_with_it_though_it_is_slower() -> None:
    *_, best = _search().run([replace(LINEAR, dim=64, chunk=16)])
    assert isinstance(best, Best)
    assert best.entry.tokens == 16
    assert {tile.tokens for tile in best.entry.kernels.values()} == {16}


def test_compiled_candidates_are_judged_while_others_compile() -> None:
    judged = threading.Event()
    today = ATTENTION.entry(HOPPER)

    def compiled(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
        return TrialResult(wrong="" if entry == today or judged.wait(10) else "waited in vain")

    def judge(problem: Problem, stage: Stage, entry: Entry) -> TrialResult:
        judged.set()
        return TrialResult(times=(1.0,))

    with ThreadPoolExecutor(2) as pool:
        search = Search(pool, pool, compiled, lambda *_: TrialResult(), judge, HOPPER)
        found = list(search.run([ATTENTION], ["entry"]))
    assert not [f for f in found if isinstance(f, Candidate) and f.result.wrong]


def test_the_file_holds_all_that_was_found(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    record = command.Record(path, {"device": "none"})
    search = _search()
    assert not command.follow(search, [ATTENTION], ["entry"], record)
    known = json.loads(path.read_text())
    stage = STAGES["attention", "parallel"][0]
    assert len(known["candidates"]) == len(stage.candidates(ATTENTION.entry(HOPPER), 64))
    assert known["best"][0]["tiles"]["entry"].startswith("tokens=64, keys=32")
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]

    again = command.Record(path, {"device": "none"})
    for candidate in stage.candidates(ATTENTION.entry(HOPPER), 64):
        tile = stage.tile(candidate)
        known = again.result(ATTENTION, stage, candidate)
        assert known == TrialResult(times=(float(tile.tokens + tile.keys),))
    assert again.result(ATTENTION, stage, replace(candidate, tokens=256)) is None
    with pytest.raises(ValueError, match="of another device, expected 'an H200'"):
        command.Record(path, {"device": "an H200"})


def test_a_file_that_cannot_be_written_ends_no_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    record = command.Record(path, {"device": "none"})
    path.mkdir()
    assert command.follow(_search(), [ATTENTION], ["entry"], record)
    said = capsys.readouterr()
    assert "attention parallel, head dim 64, bfloat16: best\n" in said.out
    assert said.err.startswith("properties.tune: --json not written: [Errno 21] Is a directory")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": "none", "candidates": [3]}', "\xff"])
def test_a_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"--json: .*, expected a file that --json wrote"):
        command.Record(path, {"device": "none"})


def test_an_entry_is_printed_as_the_table_writes_it() -> None:
    entry = ATTENTION.entry(HOPPER)
    again = eval(command.as_code(entry), {"Entry": Entry, "Tile": Tile})
    assert (again.max_dim, again.kernels) == (64, entry.kernels)
    own = STAGES["attention", "parallel"][0]
    assert own.tile(again) == own.tile(entry)


def _timer(call: Callable[[], object], milliseconds: int) -> float:
    call()
    return 1.0


def _judged(problem: Problem, entry: Entry, memory: Path) -> TrialResult:
    device = activate("simulator")
    stage = STAGES[problem.row][0]
    return trial.judged(problem, stage, entry, memory, 1, _timer, device.type)


def test_a_right_candidate_is_timed_in_each_pass(tmp_path: Path) -> None:
    entry = replace(LINEAR.entry(HOPPER), tokens=16, num_warps=1)
    assert _judged(LINEAR, entry, tmp_path) == TrialResult(times=(1.0, 1.0))


@pytest.mark.parametrize("stage", STAGES["attention", "parallel"], ids=lambda stage: stage.name)
def test_the_cases_of_a_stage_reach_its_kernels(stage: Stage) -> None:
    entry = ATTENTION.entry(HOPPER)
    with trial.installed(ATTENTION, entry):
        larger, *drawn = replace(ATTENTION, drawn=3).checked(stage, 90)
    timed = ATTENTION.timed(stage)
    assert len(drawn) == 3
    assert {case.dims["K"] for case in drawn} == {64}
    for case in (timed, larger, *drawn) if stage.kernel else (timed, larger):
        assert ("g" in case.given) == (stage.terms == "gated")
        if stage.terms != "gated":
            biased = "alibi_slopes" in case.given or case.options["softcap"] is not None
            assert biased == (stage.terms == "biased")


def test_a_wrong_candidate_is_reported_with_the_first_line_of_the_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels import linear_attn

    monkeypatch.setattr(
        "kernels.linear_attn",
        lambda scale=None, **given: linear_attn(scale=2 * (scale or 1.0), **given),
    )
    result = _judged(LINEAR, LINEAR.entry(HOPPER), tmp_path)
    assert not result.times
    assert result.wrong.startswith("differential does not hold")


def _asked_for(row: tuple[str, str], stage: Stage) -> list[str]:
    """The tiles that the timed launches ask their entry for."""
    problem = Problem(*row, 64, "bfloat16", 1, 64, 64)
    entry, asked = problem.entry(HOPPER), []

    def of(self: Entry, kernel: str) -> Tile:
        asked.append(kernel)
        return self.kernels.get(kernel, self)

    op, case = OPS[row[0]], problem.timed(stage)
    with trial.installed(problem, entry), patch.object(Entry, "of", of):
        function = getattr(kernels, row[0])
        inputs, cotangents = build(op, case), build_cotangents(op, case)
        record(
            lambda: outputs_and_gradients(op, function, inputs, cotangents, mode=row[1], tile=0),
            ARCHITECTURES["sm_90"],
        )
    return asked


@pytest.fixture(scope="module")
def compiler() -> Iterator[CompilerProcess]:
    process = CompilerProcess()
    yield process
    process.close()


def test_each_stage_tunes_kernels_that_are_launched(compiler: CompilerProcess) -> None:
    for row, stages in STAGES.items():
        for stage in stages:
            asked = compiler.call(_asked_for, row, stage)
            assert stage.kernel is None or stage.kernel in asked, f"{row} {stage.name}"


def test_a_candidate_is_compiled_ahead_and_too_large_a_one_refused(
    compiler: CompilerProcess,
) -> None:
    stage = STAGES["attention", "parallel"][0]
    fits = ATTENTION.entry(HOPPER)
    large = replace(fits, tokens=64, keys=128, num_stages=16)
    problem = replace(ATTENTION, drawn=0)
    good = compiler.call(trial.compiled, problem, stage, fits, "sm_90")
    bad = compiler.call(trial.compiled, problem, stage, large, "sm_90")
    assert good == TrialResult()
    assert "bytes of shared memory" in bad.wrong


def test_without_a_gpu_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--op", "attention"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--op", "rotary_embedding"], "invalid choice"),
        (["--op", "gla", "--mode", "parallel"], "no op has all of these"),
        (["--head-dim", "0"], "above 0"),
        (["--size", "8,4096"], "three numbers"),
        (["--json", "nowhere/found.json"], "directory that exists"),
    ],
)
def test_bad_arguments_end_with_a_sentence_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
