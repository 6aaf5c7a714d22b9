"""Every element of every output is written: NaN in fresh memory changes nothing.

In the simulator the masked lanes of a load without `other` are NaN as well, since Triton leaves
them undefined. Other libraries' kernels, whose targets are not bitwise, often count on 0 there.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from properties import simulator
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    inputs, cotangents = run.inputs(), run.cotangents()
    want = run.call(inputs, cotangents)
    with ExitStack() as unknown:
        unknown.enter_context(_fresh_memory_is_nan())
        if simulator.installed() and run.subject.target.bitwise:
            unknown.enter_context(simulator.simulating(unmasked=math.nan))
        got = run.call(inputs, cotangents)
    if not run.subject.target.bitwise:
        # The switch that fills memory may also select another algorithm.
        return compare_with_oracle(run, inputs, cotangents, got)
    against = "the same call where fresh memory and masked lanes hold anything"
    expect_identical(run, got, want, against)
    return 0.0


# Type checkers do not know this module, whose attributes are made at import.
_deterministic: Any = torch.utils.deterministic


@contextmanager
def _fresh_memory_is_nan() -> Iterator[None]:
    """Make `torch.empty` and its kin return NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    filled = _deterministic.fill_uninitialized_memory
    _deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        _deterministic.fill_uninitialized_memory = filled


LAW = Law("written_outputs", check)
