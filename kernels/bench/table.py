"""The table that a run prints, row by row."""

from collections.abc import Iterable, Sequence

from kernels.bench.baselines import KINDS
from kernels.bench.groups import Group, Row

HEADINGS = (
    "op", "B,T,H,K,V", "pass", "mode",
    "ms", "20% - 80%", *(f"/{kind}" for kind in KINDS), "floor", "GB/s", "TFLOP/s", "adds, MiB",
    "first, s",
)  # fmt: skip
_NAMES = 4
_WIDTHS = (9, 17, 6, 6, 5, 5, 7, 9, 8)
_LONGEST_NAME = len("fla fused_mul_recurrent")
_LONGEST_ERROR = 100


def cells(row: Row) -> list[str]:
    """The texts of a row that was measured, one for each heading."""
    timing = row.timing
    assert timing is not None
    share = row.of_floor
    return [
        *names(row),
        f"{timing.median:.3f}",
        f"{timing.low:.3f} - {timing.high:.3f}",
        *(f"{row.ratios[kind]:.2f}" if kind in row.ratios else "" for kind in KINDS),
        "" if share is None else f"{share:.0%}",
        f"{row.gigabytes_per_second:.0f}",
        "" if row.teraflops is None else f"{row.teraflops:.1f}",
        f"{timing.peak / 2**20:.1f}",
        "" if row.first is None else f"{row.first:.2f}",
    ]


def reason(row: Row) -> str:
    """Why a row was not measured, in a line."""
    text = " ".join((row.error or "").split())
    if len(text) > _LONGEST_ERROR:
        text = text[: _LONGEST_ERROR - 3] + "..."
    return f"{'refused' if row.refused else 'failed'}: {text}"


class Table:
    """Aligned columns of text, an empty line between groups."""

    def __init__(self, groups: Iterable[Group]) -> None:
        groups = list(groups)
        longest = [
            max(len(heading), *(len(name) for name in names))
            for heading, names in zip(
                HEADINGS,
                (
                    [group.op for group in groups],
                    [str(group.shape) for group in groups],
                    ["forward+backward"],
                    ["x" * _LONGEST_NAME],
                ),
                strict=False,
            )
        ]
        self._widths = (*longest, *_WIDTHS)
        self._before: Row | None = None

    def head(self) -> str:
        """The headings."""
        return self._aligned(HEADINGS)

    def line(self, row: Row) -> str:
        """The row, and an empty line before it where a group begins."""
        begins = self._before is None or self._before.group != row.group
        self._before = row
        if row.timing is None:
            text = f"{self._aligned(names(row))}  {reason(row)}"
        else:
            text = self._aligned(cells(row))
        return f"\n{text}" if begins else text

    def _aligned(self, texts: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if column < _NAMES else text.rjust(width)
            for column, (text, width) in enumerate(zip(texts, self._widths, strict=False))
        )
        return "  ".join(padded).rstrip() if len(texts) > _NAMES else "  ".join(padded)


def names(row: Row) -> list[str]:
    """The texts of the columns that say what a row is."""
    return [row.op, row.shape, row.what, row.name]
