"""Times against tokens and against head dim."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.bench.results import Results
from kernels.bench.shapes import Shape


@dataclass(frozen=True)
class Curves:
    """One figure: an op and a pass, whose times vary with one size.

    Args:
        against: "tokens" or "head dim".
        fixed: what the shapes have in common.
        lines: by name, sizes and milliseconds; "floor" is the least there can be.
    """

    op: str
    what: str
    against: str
    fixed: str
    lines: dict[str, list[tuple[int, float]]]

    @property
    def file(self) -> str:
        """The name of its file, without a suffix."""
        return re.sub(r"\W+", "-", f"{self.op} {self.what} {self.against} {self.fixed}")


def curves(runs: Iterable[Results]) -> list[Curves]:
    """The curves of each op, pass and form that was measured at two sizes or more."""
    found: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for dtype, row in ((run.setting["dtype"], row) for run in runs for row in run.rows):
        if row.timing is None:
            continue
        shape = Shape.read(row.shape)
        for against, size, fixed in (
            ("tokens", shape.T, f"{shape.B * shape.T} in all, {shape.H}x{shape.K}"),
            ("head dim", shape.K, f"{shape.B}x{shape.T} tokens, {shape.H * shape.K} channels"),
        ):
            form = "" if shape.form == "dense" else f", {shape.form}"
            lines = found.setdefault((row.op, row.what, against, f"{fixed}, {dtype}{form}"), {})
            name = f"ours {row.mode}" if row.kind == "ours" else row.name
            lines.setdefault(name, {})[size] = row.timing.median
            if row.floor is not None:
                lines.setdefault("floor", {})[size] = row.floor
    return [
        Curves(*key, {name: sorted(points.items()) for name, points in lines.items()})
        for key, lines in found.items()
        if max(map(len, lines.values())) > 1
    ]


def plot(runs: Sequence[Results], directory: Path) -> Iterator[Path]:
    """Draw what there is into files, and tell each.

    Raises:
        ImportError: there is no matplotlib.
        ValueError: nothing was measured at two sizes.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots want matplotlib: pip install -e '.[bench]'") from error
    found = curves(runs)
    if not found:
        raise ValueError("nothing to plot: no op was measured at two lengths or head dims")
    directory.mkdir(parents=True, exist_ok=True)
    for each in found:
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for name, points in each.lines.items():
            axes.loglog(*zip(*points, strict=True), label=name, **_style(name))
        sizes = sorted({size for points in each.lines.values() for size, _ in points})
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(title=f"{each.op}, {each.what} ({each.fixed})", xlabel=each.against, ylabel="ms")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
        path = directory / f"{each.file}.png"
        figure.savefig(path, dpi=150)
        yield path


def _style(name: str) -> dict[str, str]:
    if name == "floor":
        return {"color": "black", "linestyle": ":"}
    return {"marker": "o", "linestyle": "-" if name.startswith("ours ") else "--"}
