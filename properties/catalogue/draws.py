"""Strategies that several declarations share."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from properties.cases.case import Case
from properties.catalogue.op import Option

# Ops take Python's int and float as numbers, and their subclasses, such as NumPy's float64.
NO_NUMBERS = ("0.5", True, numpy.float32(0.5), torch.tensor(0.5))
NO_COUNTS = (2.5, 4.0, "4", True, numpy.int64(4), torch.tensor(4))
BAD_FLAGS = (None, 1, "yes", numpy.bool_(True), torch.tensor(True))
BAD_SCALES = (float("nan"), float("inf"), float("-inf"), *NO_NUMBERS)


_ASKED = st.sampled_from([False, True, True])


def asked(case: Case) -> SearchStrategy[bool]:
    """Whether an output is asked for: more often than not."""
    return _ASKED


def head_dims(largest: int = 256) -> SearchStrategy[int]:
    """1 to `largest`, most often small, odd, or next to a power of two."""
    edges = [d for d in (8, 15, 16, 17, 24, 31, 32, 33, 48, 60, 64, 65, 100) if d <= largest]
    wide = [d for d in (128, 129, 192, 256) if d <= largest]
    strategies = [st.integers(1, min(20, largest)), st.sampled_from(edges)]
    return st.one_of(*strategies, *([st.sampled_from(wide)] if wide else []))


def seldom_none(*others: SearchStrategy[int]) -> SearchStrategy[int | None]:
    """None as often as one of the others, which may be equal; `one_of` takes equal ones for one."""
    each: list[SearchStrategy[int | None]] = [st.none(), *others]
    return st.sampled_from(each).flatmap(lambda one: one)


@cache
def scales() -> SearchStrategy[float | None]:
    """The default, the sentinel -1, zero, negative and tiny ones; integers and floats."""
    special = st.sampled_from([None, None, -1, -1, -1.0, -1.0, 0.0, 0])
    return st.one_of(
        special,
        special,
        st.sampled_from([1.0, 0.5, -0.5, -2.0, 2, -2, 2.0**-24]),
        st.floats(-3, 3, width=16),
    )


def _windows(case: Case) -> SearchStrategy[int | None]:
    return _windows_of(max(case.key_lengths or case.lengths), max(case.lengths))


@lru_cache(maxsize=2048)
def _windows_of(keys: int, queries: int) -> SearchStrategy[int | None]:
    edges = sorted({max(1, n + d) for n in (keys, queries) for d in (-1, 0, 1)} | {512, 513})
    narrow, others = st.integers(1, max(1, keys - 1)), st.sampled_from([*edges, 2**31 - 1])
    # A window that ends where a tile of keys ends has whole tiles without a mask.
    at_tiles = [n + d for n in (16, 32, 64, 128) for d in (-1, 0, 1) if n + d < keys]
    of_tiles = st.sampled_from(at_tiles) if at_tiles else narrow
    # A window wider than the keys may still hide some from a query without a key of its own.
    wider = [st.integers(keys + 1, queries)] * 2 if keys < queries else []
    return seldom_none(narrow, of_tiles, of_tiles, others, others, *wider)


def count(
    name: str,
    default: int | None,
    draw: Callable[[Case], SearchStrategy[Any]],
    *,
    switched: int | None = None,
) -> Option:
    """An option that is a count, 1 or more, or None if that is its default.

    Args:
        switched: a value that is not the default; None for some value that is drawn.
    """
    bad = (0, -1, *NO_COUNTS) if default is None else (0, -1, None, *NO_COUNTS)
    switch = None if switched is None else lambda case: switched
    return Option(name, default, draw, bad=bad, switch=switch)


WINDOW = count("window", None, _windows, switched=3)
EPS = Option(
    "eps",
    1e-6,
    # Beside squares of gaussian numbers: nothing, a little, and most of the sum.
    lambda case: st.sampled_from([1e-6, 1.0, 1, 100.0]),
    bad=(0.0, -1e-6, 1e-50, 1e39, float("nan"), float("inf"), *NO_NUMBERS),
    switch=lambda case: 1e-3,
)
