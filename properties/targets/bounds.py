"""Bounds of cases: what several libraries take, see `Implementation.bounds`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from properties.cases.case import Case
from properties.catalogue.paged import key_lengths

Bound = Callable[[Case], Case]


def fixed_options(**options: Any) -> Bound:
    """Options with one value in every case."""
    return lambda case: case.with_options(**options)


def fixed_dims(**sizes: int) -> Bound:
    """Dims with one size in every case."""
    return lambda case: case.with_dims(**sizes)


def changed_dims(letters: Iterable[str], change: Callable[[int], int]) -> Bound:
    """Dims whose sizes are changed alike."""

    def bound(case: Case) -> Case:
        return case.with_dims(**{n: change(case.dims[n]) for n in letters})

    return bound


def power_of_two(size: int) -> int:
    """The least power of two that is at least this size, of 1 or more."""
    return 1 << (size - 1).bit_length()


def not_empty(case: Case) -> Case:
    """A token or more in each sequence, and dims of 1 or more."""
    keys = case.key_lengths
    return replace(
        case,
        dims={letter: max(size, 1) for letter, size in case.dims.items()},
        lengths=tuple(max(n, 1) for n in case.lengths),
        key_lengths=None if keys is None else tuple(max(n, 1) for n in keys),
    )


def equal_widths(case: Case) -> Case:
    """Values as wide as keys."""
    return case.with_dims(V=case.dims["K"])


def own_keys(case: Case) -> Case:
    """Keys of the queries' own tokens."""
    return replace(case, key_lengths=None)


def one_token_each(case: Case) -> Case:
    """One token in each sequence."""
    return replace(case, lengths=(1,) * len(case.lengths))


def positive_scale(case: Case) -> Case:
    """A scale above 0, as of kernels that take the maximum of a row before they scale it."""
    scale = case.options.get("scale")
    if scale is None or scale == -1 or scale > 0:
        return case
    return case.with_options(scale=abs(scale) or 1.0)


def masks_of_keys(case: Case) -> Case:
    """A mask that hides keys from all heads and queries, as masks of padding do."""
    if "mask" not in case.given:
        return case
    kept = "B" if "B" in case.broadcast.get("mask", "") else ""
    return replace(case, broadcast={**case.broadcast, "mask": f"{kept}HT_q"})


def with_keys(case: Case) -> Case:
    """Keys in pages, at least as many as queries, and one: those of the next seed that has them."""
    queries = case.lengths if case.packed else case.lengths * case.dims["B"]

    def fits(seed: int) -> bool:
        keys = key_lengths(replace(case, seed=seed))
        return all(n >= max(1, own) for n, own in zip(keys, queries, strict=True))

    return replace(case, seed=next(filter(fits, count(case.seed))))
