"""What of the bench needs no GPU: arguments, counts, the table, and what it is that is timed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import bench
from kernels.bench import Group, Row, Shape, Timing
from kernels.tiles import TABLE

# B, T, H, K, V: 2 · 3 · 5 = 30 queries of 4 channels, values of 6.
SHAPE = Shape(2, 3, 5, 4, 6)
TIMING = Timing(first=1.5, median=0.25, low=0.125, high=0.5, peak=3 * 2**20)


def _groups(*arguments: str) -> list[Group]:
    return bench.groups(bench.parser().parse_args(arguments))


def test_every_op_and_mode_of_the_tile_table_is_measured_forward_and_backward_in_bfloat16() -> None:
    found = _groups()
    assert {(group.op, mode) for group in found for mode in group.modes} == set(TABLE)
    assert {group.dtype for group in found} == {torch.bfloat16}
    assert [group.backward for group in found[:2]] == [False, True]
    assert {str(group.shape) for group in found} == set(bench.SHAPES)


def test_options_choose_what_is_measured() -> None:
    only = ("--op", "gla", "attention", "--mode", "chunk", "--dtype", "float16", "--forward")
    assert _groups(*only, "--shape", "2,3,5,4,6", "1,2,3,4,5") == [
        Group("gla", SHAPE, torch.float16, False, ("chunk",)),
        Group("gla", Shape(1, 2, 3, 4, 5), torch.float16, False, ("chunk",)),
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
    moved = bench.PROBLEMS[op].moved
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
    operations = bench.PROBLEMS[op].operations
    assert operations(SHAPE, False) == forward
    assert operations(SHAPE, True) == both


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("op", bench.PROBLEMS)
def test_all_that_is_timed_side_by_side_computes_the_same(
    op: str, backward: bool, subject: Any
) -> None:
    group = Group(op, SHAPE, torch.float32, backward, tuple(bench.modes(op)))
    (_, baseline), *others = group.calls(subject.device).items()
    assert [mode for mode, _ in others] == bench.modes(op)
    want = baseline()
    if backward:
        inputs = bench.PROBLEMS[op].make(SHAPE, torch.float32, torch.device("cpu"))
        assert len(want) == len(inputs) - len(bench.PROBLEMS[op].constants)
    else:
        assert len(want) == 1
    for _, call in others:
        # The same function of numbers about 1, in whatever precision a GPU's library multiplies: 11
        # bits with tf32.
        torch.testing.assert_close(call(), want, rtol=2**-8, atol=2**-8)


def test_a_row_relates_time_to_baseline_bytes_and_operations(subject: Any) -> None:
    times = iter([0.25, 0.5])

    def timing_of(call: bench.Call) -> Timing:
        return Timing(first=1.5, median=next(times), low=0.125, high=1.0, peak=0)

    group = Group("attention", SHAPE, torch.bfloat16, False, ("parallel",))
    baseline, row = group.rows(subject.device, timing_of)
    assert (baseline.mode, baseline.ratio) == ("torch SDPA", 1.0)
    assert (row.mode, row.ratio) == ("parallel", 2.0)
    assert row.group == baseline.group == ("attention", "2,3,5,4,6", "forward")
    # 1200 bytes and 1200 operations in half a millisecond.
    assert row.gigabytes_per_second == pytest.approx(0.0024)
    assert row.teraflops == pytest.approx(2.4e-6)


def test_a_failure_is_a_row_of_its_own_and_stops_nothing(subject: Any) -> None:
    def timing_of(call: bench.Call) -> Timing:
        if not failed:
            failed.append(call)
            raise RuntimeError("out of memory")
        return TIMING

    failed: list[bench.Call] = []
    group = Group("gla", SHAPE, torch.float32, True, ("chunk", "fused_recurrent"))
    first, *rest = group.rows(subject.device, timing_of)
    assert first.error == "RuntimeError: out of memory"
    assert [row.timing for row in rest] == [TIMING, TIMING]
    assert [row.ratio for row in rest] == [None, None]


def test_inputs_that_cannot_be_made_are_a_row_too(subject: Any) -> None:
    odd = Group("rotary_embedding", Shape(1, 2, 3, 5, 5), torch.float32, False, ("fused",))
    (row,) = odd.rows(subject.device, lambda call: TIMING)
    assert row.error is not None
    assert row.error.startswith("ValueError: rotary_dim: 5")


ROWS = [
    Row("gla", "2,3,5,4,6", "forward", "auto", TIMING, 1.0, 1234.5, 0.26),
    Row("gla", "2,3,5,4,6", "forward", "chunk", error="RuntimeError: out of memory"),
    Row("gla", "2,3,5,4,6", "forward+backward", "auto", TIMING, None, 7.0, 123.45),
]


def test_the_table_has_aligned_columns_and_a_gap_between_groups() -> None:
    assert bench.plain_table(ROWS).splitlines() == [
        "op   B,T,H,K,V  pass              mode   "
        "first call, s      ms      20% - 80%  ratio  GB/s  TFLOP/s  adds, MiB",
        "",
        "gla  2,3,5,4,6  forward           auto   "
        "         1.50   0.250  0.125 - 0.500   1.00  1234      0.3        3.0",
        "gla  2,3,5,4,6  forward           chunk  "
        "               failed",
        "",
        "gla  2,3,5,4,6  forward+backward  auto   "
        "         1.50   0.250  0.125 - 0.500            7    123.5        3.0",
    ]  # fmt: skip


def test_a_run_shows_its_rows_writes_them_and_tells_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(Group, "rows", lambda self, device, timing_of: ROWS)
    path = tmp_path / "rows.json"
    only = ["--op", "gla", "--shape", "2,3,5,4,6", "--forward"]
    assert bench.main([*only, "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("a GPU, torch ")
    assert bench.plain_table(ROWS) in said.out
    assert "[1/1] gla 2,3,5,4,6 forward" in said.err
    assert "failed: gla 2,3,5,4,6 forward chunk: RuntimeError: out of memory" in said.err
    written = json.loads(path.read_text())
    assert written["dtype"] == "bfloat16"
    assert written["rows"][0]["timing"]["median"] == 0.25
    assert written["rows"][1]["error"] == "RuntimeError: out of memory"

    monkeypatch.setattr(Group, "rows", lambda self, device, timing_of: ROWS[:1])
    assert bench.main(only) == 0


def test_the_table_needs_no_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", "rich.console", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    bench.show(ROWS)
    assert capsys.readouterr().out == bench.plain_table(ROWS) + "\n"


def test_a_terminal_gets_every_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    bench.show(ROWS)
    shown = capsys.readouterr().out
    for row in ROWS:
        for text in bench.cells(row):
            assert text in shown


def test_a_first_call_finds_nothing_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.softmax.forward import attention_forward

    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    monkeypatch.setitem(attention_forward.device_caches, "a device", ())
    bench._forget_compiled(str(tmp_path))
    assert "a device" not in attention_forward.device_caches
    from triton import knobs

    assert knobs.cache.dir == str(tmp_path)
