"""Tests of the curves that are plotted, and of the files."""

import sys
from pathlib import Path

import pytest

from kernels.bench.groups import Row
from kernels.bench.plots import curves, plot
from kernels.bench.results import Results
from kernels.bench.timing import Timing


def _run(*shapes: str, kind: str = "ours") -> Results:
    rows = [
        Row("gla", shape, "forward", kind, "chunk", Timing(n, n, n, 0), floor=n / 2)
        for n, shape in enumerate(shapes, 1)
    ]
    return Results({"dtype": "bfloat16"}, [*rows, Row("gla", shapes[0], "forward", "ours", "x")])


def test_times_are_plotted_against_tokens_at_constant_tokens() -> None:
    (one,) = curves([_run("4,16,2,8,8", "16,4,2,8,8", "4,32,2,8,8")])
    assert (one.op, one.what, one.against) == ("gla", "forward", "tokens")
    assert one.fixed == "64 in all, 2x8, bfloat16"
    assert one.lines == {
        "ours chunk": [(4, 2), (16, 1)],
        "floor": [(4, 1.0), (16, 0.5)],
    }
    assert one.file == "gla-forward-tokens-64-in-all-2x8-bfloat16"


def test_times_are_plotted_against_head_dims_of_as_many_channels() -> None:
    (one,) = curves([_run("4,16,2,8,8"), _run("4,16,1,16,16", "4,16,1,8,8", kind="fla")])
    assert (one.against, one.fixed) == ("head dim", "4x16 tokens, 16 channels, bfloat16")
    assert one.lines["ours chunk"] == [(8, 1)]
    assert one.lines["fla chunk"] == [(16, 1)]


def test_packed_and_dense_are_figures_of_their_own() -> None:
    assert curves([_run("4,16,2,8,8", "16,4,2,8,8 packed")]) == []
    (one,) = curves([_run("4,16,2,8,8 packed", "16,4,2,8,8 packed")])
    assert one.fixed.endswith(", packed")


def test_figures_are_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (path,) = plot([_run("4,16,2,8,8", "16,4,2,8,8")], tmp_path / "plots")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="plots want matplotlib: pip install"):
        list(plot([_run("4,16,2,8,8", "16,4,2,8,8")], tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_one_size_is_no_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to plot"):
        list(plot([_run("4,16,2,8,8")], tmp_path))
