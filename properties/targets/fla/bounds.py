"""Bounds of cases that several families share."""

from dataclasses import replace

from properties.cases.case import Case
from properties.targets.bounds import Bound, changed_dims, positive_scale, power_of_two


def at_least(least: int, *names: str) -> Bound:
    """Raise dims to the least that a dot takes."""
    return changed_dims(names, lambda n: n + least if n < least else n)


def at_most(most: int, letter: str = "K") -> Bound:
    return changed_dims(letter, lambda n: (n - 1) % most + 1)


powers_of_two = changed_dims("KV", lambda n: max(16, power_of_two(n)))


def all_in_the_dtype(case: Case) -> Case:
    return replace(case, float32=())


WIDE = {"K and V above 8": at_least(9, "K", "V")}
WIDE_VALUES = {"V above 8": at_least(9, "V")}
POSITIVE = {"a positive scale": positive_scale}
