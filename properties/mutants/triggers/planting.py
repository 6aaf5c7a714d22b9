"""Which predicates hold where a law looks: calls are made wrong, and the laws asked.

What a law says of a planted predicate follows from the calls in which it holds, so one planting
answers for all predicates that hold in the same calls of an evaluation. All results of those calls
are wrong at once, each by an amount of its own; the law names those that it noticed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.cases.tensors import Results
from properties.catalogue.op import Op
from properties.laws import Subject, Violation
from properties.laws.law import Recall
from properties.mutants.triggers.grammar import Atom, pairs
from properties.mutants.triggers.recording import Evaluation, Witness
from properties.targets.ledger import Fault, Ledger
from properties.verdict import Comparison
from properties.verdict.compare import Budget

Matrix = "np.ndarray[Any, Any]"
# Evaluations in which a predicate is planted before it counts as missing.
TRIES = 8
# Those that know the right numbers come first. In others what is wrong in all calls may cancel.
_FIRST = ("exactness", "differential", "splitting", "packing", "permutation", "context_invariance")


# What is planted is larger than all of a result, and more than 1; a budget that is never so large
# takes no time. How much a real one grants is a question for mutants.
_CLEAR, _CLEAR_PART = 0.5, 1 / 32


class _Silent(RuntimeError):
    """What a call without a single element to be wrong raises instead."""


class _Listener(Ledger):
    """Excuses everything, so that a law goes on to the next result, and remembers what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Fault] = []

    def excuses(self, fault: Fault) -> bool:
        self.heard.append(fault)
        return True


class _Recall:
    """The oracle's answers as `recall` knows them, with budgets that a clear mistake exceeds."""

    def __init__(self, recall: Recall) -> None:
        self.recall = recall
        self.want: Results = {}

    def __call__(self, about: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        # What is asked about budgets ends with how quick they are to be.
        if not isinstance(about[-1], bool):
            self.want = self.recall(about, compute)
            return self.want
        return {name: _clear(y) for name, y in self.want.items()}


def _clear(want: Tensor) -> Budget:
    largest = want.abs().nan_to_num(0, 0, 0).max() if want.numel() else want.new_zeros(())
    return Budget(torch.full_like(want, _CLEAR) + _CLEAR_PART * largest, "clear mistakes")


@dataclass
class Reach:
    """What became of the predicates of an op.

    Args:
        wanted: of each pair of atoms whether it is a predicate; see `grammar.pairs`.
        held: that hold in some recorded call.
        reached: whose planting made a law fail. The diagonal is for atoms by themselves.
        tries: in how many evaluations each was planted.
        plantings: how often something was planted.
    """

    op: Op
    atoms: list[Atom]
    wanted: Any
    held: Any
    reached: Any
    tries: Any
    plantings: int = 0

    @classmethod
    def of(cls, op: Op, every: list[Atom]) -> "Reach":
        wanted = pairs(op, every)
        np.fill_diagonal(wanted, 1)
        nothing = np.zeros(wanted.shape, dtype=bool)
        tries = np.zeros(wanted.shape, dtype=np.int8)
        return cls(op, every, wanted, nothing, nothing.copy(), tries)


def explore(reach: Reach, evaluations: Iterable[Evaluation], subject: Subject) -> None:
    """Plant whatever is not known to be reached, where it holds, until laws notice or tries end."""
    for one in sorted(evaluations, key=_order):
        rows = np.array([[a.holds(call) for a in reach.atoms] for call in one.calls])
        together = np.triu(rows.T.astype(np.float32) @ rows.astype(np.float32) > 0)
        reach.held |= together & (reach.wanted == 1)
        open_ = together & (reach.wanted == 1) & ~reach.reached & (reach.tries < TRIES)
        i, j = np.nonzero(open_)
        if not len(i):
            continue
        # The calls in which each pair holds, and the pairs of each such set.
        patterns = np.packbits(rows[:, i] & rows[:, j], axis=0).T
        sets, which = np.unique(patterns, axis=0, return_inverse=True)
        for number in np.argsort(-np.bincount(which.ravel())):
            members = which.ravel() == number
            calls = np.nonzero(np.unpackbits(sets[number])[: len(rows)])[0]
            if len(calls) == len(rows) and one.job.law not in _FIRST[:-1]:
                continue
            reach.plantings += 1
            noticed = _noticed(reach.op, one, subject, frozenset(calls.tolist()))
            known = _answered(reach.atoms, noticed)
            a, b = i[members], j[members]
            judged = known[a, b]
            reach.reached[a[judged], b[judged]] = True
            reach.tries[a, b] += 1


def _order(one: Evaluation) -> tuple[int, float]:
    law = one.job.law
    return _FIRST.index(law) if law in _FIRST else len(_FIRST), one.seconds


def _answered(atoms: list[Atom], noticed: frozenset[str] | None) -> Any:
    """Pairs for which it counts that the law noticed these results; None for an exception."""
    ask = np.ones((len(atoms), len(atoms)), dtype=bool)
    backward = np.array([a.backward for a in atoms])
    named = np.array([a.result is not None for a in atoms])
    if noticed is None:
        return ask & ~named[:, None] & ~named[None, :]
    seen = np.array([a.result in noticed for a in atoms])
    gradient = any(a.result in noticed and a.backward for a in atoms)
    ok = (seen | ~named) & (~backward | gradient)
    return (ask if noticed else ~ask) & ok[:, None] & ok[None, :]


def _noticed(
    op: Op, one: Evaluation, subject: Subject, calls: frozenset[int]
) -> frozenset[str] | None:
    """The results that the law finds wrong when these calls are; None where it ends in an error."""
    witness, listener = subject.target, _Listener()
    assert isinstance(witness, Witness)
    empty = {n for n in calls if not any(one.calls[n].get(f"result {o.name}") for o in op.outputs)}

    def spoils(number: int) -> Callable[[str, Tensor], None] | None:
        if number not in calls:
            return None
        return _refuse if number in empty else _spoil

    quiet = Subject(witness, subject.device, listener, _Recall(subject.recall), quick=True)
    witness.spoils = spoils
    witness.start()
    try:
        with witness.eager():
            one.job.check(op, one.case, quiet)
    except _Silent:
        return None
    except Violation as violation:
        listener.heard.append(violation.fault)
    finally:
        witness.spoils = None
    return frozenset(fault.name for fault in listener.heard if isinstance(fault, Comparison))


def _refuse(name: str, result: Tensor) -> None:
    raise _Silent(f"{name}: planted")


def _spoil(name: str, result: Tensor) -> None:
    """Make one element of a result wrong by more than any element is large."""
    if not result.numel():
        return
    # Autograd need not know: an output may be an input, a view of what others remember.
    result = result.data
    place = torch.unravel_index(torch.tensor(result.numel() * 5 // 8), result.shape)
    value = result[place]
    largest = result.abs().nan_to_num(0, 0, 0).max()
    result[place] = value + largest + 1 if bool(value.isfinite()) else 0.0
