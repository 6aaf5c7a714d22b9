"""A large call computes its addresses in 64 bits, and a GPU takes its grids.

It runs in a simulator whose 32-bit integers have fewer bits than a tensor has elements, and whose
grids are smaller than a pack has heads of all sequences, or than a long sequence has tokens.
Offsets within a tile need no more bits, and some grids do not grow, so an error counts if it comes
again, at the same line, in calls and limits of two and four times the size.

Adapters of Triton kernels have this law. `suite/test_narrow_indices.py` tests our own kernels, in
more ways.
"""

import math
from dataclasses import replace
from functools import cache, partial

from properties import simulator
from properties.cases.case import Case
from properties.catalogue.op import Op
from properties.laws.law import Law, Run

# Tokens of one long sequence; or a number of sequences, and tokens of each.
TOKENS, SEQUENCES, FEW = 1030, 200, 5
_SIZES = {"H": 2, "G": 2, "R": 1, "K": 16, "V": 16, "D": 32, "P": 8}
_OTHER_SIZE = 4
# Options that size what a call allocates for itself.
_ALLOCATED = ("num_splits",)


def check(run: Run) -> float:
    bits = max(x.numel() for x in run.inputs().tensors.values()).bit_length() - 1
    error_at = cache(partial(_error, run, bits))
    # An error of the smallest call alone may hide one of all sizes.
    for doublings in (0, 1):
        error = error_at(doublings)
        if error is None:
            break
        if all(_alike(error, error_at(doublings + more)) for more in (1, 2)):
            raise error
    return 0.0


def _call(run: Run, bits: int) -> None:
    """Call with integers of so many bits, and with small grids: in a pack of half its heads, or of
    its sequences if they have one each, and in a sequence of half its tokens.
    """
    case, most = run.case, simulator.Options.grid_limit
    if case.packed:
        heads = math.prod(case.dims.get(letter, 1) for letter in "HGR")
        most = case.sequences * max(heads // 2, 1)
    elif case.dims.get("B", 1) == 1:
        most = max(case.lengths[0] // 2, 1)
    with simulator.simulating(index_bits=bits, grid_limit=most):
        run.call(run.inputs(), run.cotangents())


def _error(run: Run, bits: int, doublings: int) -> simulator.SimulationError | None:
    """The error of a call and limits of so many times the size; None if there is none, or if the
    case cannot be that large.
    """
    case, times = run.case, 2**doublings
    if case.packed:
        larger = replace(case, lengths=case.lengths * times)
    elif case.dims["B"] > 1:
        larger = case.with_dims(B=case.dims["B"] * times)
    else:
        larger = replace(case, lengths=(case.lengths[0] * times,))
    larger = run.op.settle(larger)
    if _tokens(larger) != times * _tokens(case):
        return None
    try:
        _call(run.on(larger), bits + doublings)
    except (simulator.IndexOverflow, simulator.GridTooLarge) as error:
        return error
    return None


def _alike(error: simulator.SimulationError, other: simulator.SimulationError | None) -> bool:
    return type(error) is type(other) and other is not None and error.location == other.location


def _tokens(case: Case) -> int:
    return sum(case.lengths) * case.dims.get("B", 1)


def adapt(op: Op, case: Case) -> Case:
    """Return a case of many tokens or, if the drawn one has several rows or a pack, of many of
    these. Of the drawn options it keeps the flags and the number of splits, and whether heads
    share keys.
    """
    if case.packed:
        return _sized(op, case, rows=1, lengths=(FEW,) * SEQUENCES)
    rows = _sized(op, case, rows=SEQUENCES, lengths=(FEW,))
    long = _sized(op, case, rows=1, lengths=(TOKENS,))
    # A mode may take one token of each sequence only.
    return rows if case.dims["B"] > 1 or _tokens(long) < TOKENS else long


def _sized(op: Op, case: Case, rows: int, lengths: tuple[int, ...]) -> Case:
    dims = {letter: _SIZES.get(letter, _OTHER_SIZE) for letter in op.dims} | {"B": rows}
    if case.dims.get("R", 1) > 1:
        dims |= {"G": 1, "R": 2}
    full = op.full(case.mode, dims, lengths, packed=case.packed)
    kept = {n: x for n, x in case.options.items() if type(x) is bool or n in _ALLOCATED}
    made = replace(
        full,
        dtype=case.dtype,
        tile=case.tile,
        seed=case.seed,
        given=tuple(n for n in full.given if n in case.given),
    ).with_options(**kept)
    return op.settle(made)


LAW = Law("large_calls", check, adapt)
