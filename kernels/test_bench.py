"""What of the bench needs no GPU: arguments, counts, the table, and what it is that is timed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.bench import __main__ as bench
from kernels.bench import baselines
from kernels.bench.groups import Call, Group, Row
from kernels.bench.problems import PROBLEMS, modes
from kernels.bench.results import Results
from kernels.bench.shapes import SHAPES, Shape
from kernels.bench.table import Table, reason
from kernels.bench.timing import Ceilings, Timing
from kernels.tiles import TABLE

# B, T, H, K, V: 2 · 3 · 5 = 30 queries of 4 channels, values of 6.
SHAPE = Shape(2, 3, 5, 4, 6)
TIMING = Timing(median=0.25, low=0.125, high=0.5, peak=3 * 2**20)
# 2.4 GB/s and 1.2 GFLOP/s: what attention of `SHAPE` moves in half a microsecond, and multiplies in
# one.
ROOF = Ceilings(bandwidth=2.4e9, arithmetic=1.2e9)


def _groups(*arguments: str) -> list[Group]:
    return bench.groups(bench.parser().parse_args(arguments))


def test_every_op_and_mode_of_the_tile_table_is_measured_forward_and_backward_in_bfloat16() -> None:
    found = _groups()
    assert {(group.op, mode) for group in found for mode in group.modes} == set(TABLE)
    assert {group.dtype for group in found} == {torch.bfloat16}
    assert [group.backward for group in found[:2]] == [False, True]
    assert {str(group.shape) for group in found} == set(SHAPES)


def test_options_choose_what_is_measured() -> None:
    only = ("--op", "gla", "attention", "--mode", "chunk", "--dtype", "float16", "--forward")
    only = (*only, "--against", "torch")
    assert _groups(*only, "--shape", "2,3,5,4,6", "1,2,3,4,5") == [
        Group("gla", SHAPE, torch.float16, False, ("chunk",), ("torch",)),
        Group("gla", Shape(1, 2, 3, 4, 5), torch.float16, False, ("chunk",), ("torch",)),
    ]
    assert {group.backward for group in _groups("--backward")} == {True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "8,64,32,64"], "expected five numbers"),
        (["--shape", "8,64,32,64,0"], "expected five numbers"),
        (["--shape", "8,64,32,64,-1"], "expected five numbers"),
        (["--op", "conv"], "invalid choice"),
        (["--dtype", "int8"], "invalid choice"),
        (["--against", "numpy"], "expected some of fla, torch"),
        (["--budget", "0"], "expected a whole number above 0"),
        (["--json", "no such directory/rows.json"], "in a directory that exists"),
        (["--forward", "--backward"], "not allowed with"),
        (["--op", "gla", "--mode", "parallel"], "--mode parallel: a mode of none of gla"),
    ],
)
def test_bad_arguments_end_with_a_sentence_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_names_every_op_and_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for op, mode in TABLE:
        assert op in text
        assert mode in text


def test_without_a_gpu_there_are_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "rows.json"
    assert bench.main(["--json", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no GPU" in said.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("op", "forward", "both"),
    [
        # 30 vectors of 4, 4, 6, 6 channels in 2 bytes; then 4, 4, 6, 6 and 4, 4, 6 again.
        ("linear_attn", 30 * 20 * 2, 30 * 54 * 2),
        # Gates: 30 vectors of 4 channels in 4 bytes, once, and twice again.
        ("gla", 30 * 20 * 2 + 480, 30 * 54 * 2 + 3 * 480),
        # As for linear_attn, then o besides, and a lse of 30 times 4 bytes, twice.
        ("attention", 30 * 20 * 2, 30 * 60 * 2 + 240),
        # 30 vectors of 4 channels in, 30 out, and two tables of 3 times 2.
        ("rotary_embedding", (120 + 120 + 12) * 2, (120 + 120 + 12) * 4),
    ],
)
def test_bytes_are_those_counted_by_hand(op: str, forward: int, both: int) -> None:
    moved = PROBLEMS[op].moved
    assert moved(SHAPE, 2, False) == forward
    assert moved(SHAPE, 2, True) == both


@pytest.mark.parametrize(
    ("op", "forward", "both"),
    [
        # 30 tokens, states of 24: k vᵀ added, qᵀ S: 2 products and 2 sums for each element.
        ("linear_attn", 30 * 24 * 4, 30 * 24 * 14),
        ("gla", 30 * 24 * 5, 30 * 24 * 17),
        # 10 heads of 1 + 2 + 3 pairs. Forward 4 + 6 products, backward 4 + 6, then 4, 4 and 6.
        ("attention", 60 * 2 * 10, 60 * 2 * 34),
        # 30 vectors of two pairs.
        ("rotary_embedding", 60 * 6, 120 * 6),
    ],
)
def test_operations_are_those_counted_by_hand(op: str, forward: int, both: int) -> None:
    operations = PROBLEMS[op].operations
    assert operations(SHAPE, False) == forward
    assert operations(SHAPE, True) == both


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("op", PROBLEMS)
def test_all_that_is_timed_side_by_side_computes_the_same(
    op: str, backward: bool, subject: Any
) -> None:
    group = Group(op, SHAPE, torch.float32, backward, tuple(modes(op)), ("torch",))
    calls = group.calls(subject.device)
    assert [one.mode for one, _ in calls if one.kind == "ours"] == modes(op)
    # The same function of numbers about 1, in whatever precision a GPU's library multiplies: 11
    # bits with tf32.
    want = _all_the_same(calls, 2**-8)
    if backward:
        inputs = PROBLEMS[op].make(SHAPE, torch.float32, torch.device("cpu"))
        assert len(want) == len(inputs) - len(PROBLEMS[op].constants)
    else:
        assert len(want) == 1


@pytest.mark.parametrize("op", baselines.FLA)
def test_fla_computes_the_same(op: str, subject: Any) -> None:
    pytest.importorskip("fla")
    shape = Shape(1, 20, 2, 16, 16)
    group = Group(op, shape, torch.float16, False, tuple(modes(op)[:1]), ("fla",))
    calls = group.calls(subject.device)
    assert tuple(one.mode for one, _ in calls if one.kind == "fla") == baselines.FLA[op].modes
    _all_the_same(calls, 2**-6)


def _all_the_same(
    calls: list[tuple[baselines.Contender, Call]], tolerance: float
) -> tuple[torch.Tensor, ...]:
    """Not in the backends that they are timed in, which want a GPU."""
    results = [call() for _, call in calls]
    for got in results[:-1]:
        torch.testing.assert_close(got, results[-1], rtol=tolerance, atol=tolerance)
    return results[-1]


def test_the_tables_name_every_op() -> None:
    assert set(baselines.FLA) == set(PROBLEMS)
    assert baselines.available()[-1] == "torch"
    names = [one.name for one in baselines.contenders("attention", ("torch",), backward=False)]
    assert names == ["torch flash", "torch cudnn", "torch efficient"]
    assert baselines.contenders("gla", (), backward=False) == []


def test_a_row_relates_time_to_baselines_and_floor(subject: Any) -> None:
    times = iter([1.0, 0.25, 0.4, 0.5])

    def timing_of(call: Call) -> Timing:
        return Timing(median=next(times), low=0.125, high=1.0, peak=0)

    group = Group("attention", SHAPE, torch.bfloat16, False, ("parallel",), ("torch",))
    *others, row = group.rows(subject.device, timing_of, ROOF)
    assert [(other.name, other.ratios) for other in others] == [
        ("torch flash", {}),
        ("torch cudnn", {}),
        ("torch efficient", {}),
    ]
    assert (row.name, row.ratios) == ("parallel", {"torch": 2.0})
    assert {other.group for other in others} == {row.group}
    assert row.group == ("attention", "2,3,5,4,6", "forward")
    # 1200 bytes and 1200 operations in half a millisecond.
    assert row.gigabytes_per_second == pytest.approx(0.0024)
    assert row.teraflops == pytest.approx(2.4e-6)
    assert row.floor == pytest.approx(1e-3)
    assert row.of_floor == pytest.approx(2e-3)


def test_the_floor_of_a_recurrence_is_its_bytes_alone(subject: Any) -> None:
    group = Group("linear_attn", SHAPE, torch.bfloat16, False, ("chunk",))
    (row,) = group.rows(subject.device, lambda call: TIMING, ROOF)
    assert row.ratios == {}
    assert row.floor == pytest.approx(0.5e-3)


def test_a_failure_is_a_row_of_its_own_and_stops_nothing(subject: Any) -> None:
    def timing_of(call: Call) -> Timing:
        if not failed:
            failed.append(call)
            raise RuntimeError("out of memory")
        return TIMING

    failed: list[Call] = []
    group = Group("rotary_embedding", Shape(2, 3, 5, 4, 4), torch.float32, True, ("fused",))
    group = replace(group, against=("torch",))
    first, *rest = group.rows(subject.device, timing_of, ROOF)
    assert (first.error, first.refused) == ("RuntimeError: out of memory", False)
    assert [row.timing for row in rest] == [TIMING]
    assert [row.ratios for row in rest] == [{}]


def test_a_refusal_is_a_row_that_says_so(subject: Any) -> None:
    wide = Group("linear_attn", Shape(1, 2, 1, 512, 4), torch.float32, False, ("chunk",))

    def timing_of(call: Call) -> Timing:
        call()
        return TIMING

    (row,) = wide.rows(subject.device, timing_of, ROOF)
    assert row.refused
    assert reason(row).startswith("refused: ValueError: K")


def test_inputs_that_cannot_be_made_are_a_row_too(subject: Any) -> None:
    odd = Group("rotary_embedding", Shape(1, 2, 3, 5, 5), torch.float32, False, ("fused",))
    (row,) = odd.rows(subject.device, lambda call: TIMING, ROOF)
    assert row.error is not None
    assert row.error.startswith("ValueError: rotary_dim: 5")


ROWS = [
    Row("gla", "2,3,5,4,6", "forward", "fla", "chunk", TIMING, {}, 0.05, 1234.5, 0.26),
    Row("gla", "2,3,5,4,6", "forward", "ours", "chunk", error="RuntimeError: out of\nmemory"),
    Row(
        "gla", "2,3,5,4,6", "forward+backward", "ours", "chunk",
        TIMING, {"fla": 0.5}, 0.125, 7.0, 123.45, 1.5,
    ),
]  # fmt: skip
GROUPS = [
    Group("gla", SHAPE, torch.bfloat16, backward, ("chunk",), ("fla",))
    for backward in (False, True)
]


def test_the_table_has_aligned_columns_and_a_gap_between_groups() -> None:
    table = Table(GROUPS)
    lines = [table.head(), *(table.line(row) for row in ROWS)]
    assert "\n".join(lines).splitlines() == [
        "op   B,T,H,K,V  pass              mode                 "
        "       ms          20% - 80%    /fla  /torch  floor   GB/s  TFLOP/s  adds, MiB  first, s",
        "",
        "gla  2,3,5,4,6  forward           fla chunk            "
        "    0.250      0.125 - 0.500                    20%   1234      0.3        3.0",
        "gla  2,3,5,4,6  forward           chunk                "
        "failed: RuntimeError: out of memory",
        "",
        "gla  2,3,5,4,6  forward+backward  chunk                "
        "    0.250      0.125 - 0.500    0.50            50%      7    123.5        3.0      1.50",
    ]  # fmt: skip


@pytest.fixture
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "ceilings", lambda device: ROOF)


def _measured(self: Group, device: Any, timing_of: Any, roof: Ceilings) -> list[Row]:
    return [row for row in ROWS if row.what == ("forward+backward" if self.backward else "forward")]


ONLY = ["--op", "gla", "--shape", "2,3,5,4,6", "--against", "none"]


@pytest.mark.usefixtures("_a_gpu")
def test_a_run_shows_its_rows_writes_them_and_tells_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Group, "rows", _measured)
    path = tmp_path / "rows.json"
    assert bench.main([*ONLY, "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("a GPU, torch ")
    table = Table(GROUPS)
    for row in ROWS:
        assert table.line(row) in said.out
    assert "[1/2] gla 2,3,5,4,6 forward" in said.err
    assert "gla 2,3,5,4,6 forward chunk failed: RuntimeError: out of memory" in said.err
    written = json.loads(path.read_text())
    assert written["dtype"] == "bfloat16"
    assert written["command"].startswith("python -m kernels.bench --op gla")
    assert written["rows"][0]["timing"]["median"] == 0.25
    assert written["rows"][1]["error"] == "RuntimeError: out of\nmemory"
    assert Results.read(path).rows == ROWS

    assert bench.main([*ONLY, "--backward"]) == 0


@pytest.mark.usefixtures("_a_gpu")
def test_what_was_measured_before_a_run_ends_is_shown_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> Iterator[Row]:
        yield ROWS[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(Group, "rows", interrupted)
    path = tmp_path / "rows.json"
    assert bench.main([*ONLY, "--json", str(path)]) == 130
    said = capsys.readouterr()
    assert Table(GROUPS).line(ROWS[0]) in said.out
    left = "gla 2,3,5,4,6 forward, gla 2,3,5,4,6 forward+backward"
    assert f"interrupted; left out: {left}" in said.err
    assert Results.read(path).rows == ROWS[:1]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("_a_gpu")
def test_no_group_begins_after_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 9.0, 11.0])
    monkeypatch.setattr(bench, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Group, "rows", lambda *arguments: ROWS[:1])
    path = tmp_path / "rows.json"
    assert bench.main([*ONLY, "--budget", "10", "--json", str(path)]) == 1
    assert "no time was left; left out: gla 2,3,5,4,6 forward+backward" in capsys.readouterr().err
    written = Results.read(path)
    assert written.rows == ROWS[:1]
    assert written.left_out == ["gla 2,3,5,4,6 forward+backward"]


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    Results({"device": "a GPU"}, ROWS[:1]).write(path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        Results({"device": object()}, ROWS).write(path)
    assert Results.read(path).rows == ROWS[:1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for text in ("{", "[]", "{}", '{"rows": [{}], "left_out": []}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"no results of kernels\.bench"):
            Results.read(path)
