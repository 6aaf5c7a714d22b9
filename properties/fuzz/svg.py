"""SVG paths for the page, in units that the page scales."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

WIDTH, HEIGHT = 1000, 100


def cells(rows: Sequence[str]) -> dict[int, str]:
    """Level → the path of its cells, each of size 1; correct cells have none."""
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        x = 0
        for digit, run in groupby(row):
            length = len([*run])
            if digit != "0":
                paths.setdefault(int(digit), []).append(f"M{x} {y}h{length}v1h-{length}z")
            x += length
    return {level: "".join(parts) for level, parts in sorted(paths.items())}


def curves(history: Mapping[str, Any], seconds: float, ops: Sequence[str]) -> dict[str, Any]:
    """The night over time.

    Returns:
        "rate", the path of examples per second, and "most", its maximum; "worst", the paths of
        error over budget by op, with "" for all ops.
    """
    step, bins, seconds = history["step"], history["bins"], max(seconds, 1e-3)
    widths = [max(min(step, seconds - place * step), 1e-3) for place in range(len(bins))]
    examples = [sum(tally["examples"] for tally in counts.values()) for counts in bins]
    rates = [count / width for count, width in zip(examples, widths, strict=True)]
    most = max(rates, default=0.0)

    def worst(op: str) -> list[float]:
        return [
            max(
                (n["error_over_budget"] for key, n in counts.items() if op in ("", key)),
                default=0.0,
            )
            for counts in bins
        ]

    return {
        "rate": _bars(rates, step, seconds, most),
        "most": most,
        "worst": {op: _bars(worst(op), step, seconds, 1.0) for op in ("", *ops)},
    }


def _bars(values: Sequence[float], step: float, seconds: float, top: float) -> str:
    """A bar for each value that is not 0, from the bottom of the plot."""
    parts = []
    for place, value in enumerate(values):
        left, right = (min(WIDTH, n * step / seconds * WIDTH) for n in (place, place + 1))
        height = HEIGHT * min(1.0, value / top) if top else 0.0
        if height:
            parts.append(
                f"M{left:.1f} {HEIGHT}V{HEIGHT - height:.1f}H{max(right, left + 1):.1f}V{HEIGHT}z"
            )
    return "".join(parts)
