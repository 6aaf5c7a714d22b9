"""Plant predicates: make calls wrong and see whether a law fails.

The effect of a planted predicate depends only on the calls in which it holds, so one planting
answers for all predicates with the same calls. All results of those calls are made wrong at once,
each by another amount; the law names those that it noticed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.cases.inputs import Results
from properties.catalogue.op import Op
from properties.laws import LAWS, Subject, Violation
from properties.laws.law import Recall
from properties.mutants.triggers.grammar import Atom, pairs
from properties.mutants.triggers.recording import Evaluation, Witness
from properties.targets.ledger import Fault, Ledger
from properties.verdict import Comparison
from properties.verdict.compare import Budget

Matrix = "np.ndarray[Any, Any]"
# Evaluations to plant a predicate in before it counts as missing.
TRIES = 8
# Laws that know the right numbers come first. In others a mistake in all calls may cancel.
_FIRST = ("exactness", "differential", "splitting", "packing", "permutation", "context_invariance")


# Planted errors exceed the largest element and 1, and budgets are never that large, so none is
# computed. Mutants measure what real budgets allow.
_CLEAR, _CLEAR_PART = 0.5, 1 / 32


class _Silent(RuntimeError):
    """Raised by a call without an element to make wrong."""


class _Listener(Ledger):
    """A ledger that excuses and records everything, so that a law goes on to the next result."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Fault] = []

    def excuses(self, fault: Fault) -> bool:
        self.heard.append(fault)
        return True


class _Recall:
    """Cached oracle answers, with small budgets that planted errors exceed."""

    def __init__(self, recall: Recall) -> None:
        self.recall = recall
        self.want: Results = {}

    def __call__(self, about: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        _, what, *_ = about
        if what == "budgets":
            return {name: _clear(y) for name, y in self.want.items()}
        self.want = self.recall(about, compute)
        return self.want


def _clear(want: Tensor) -> Budget:
    largest = want.abs().nan_to_num(0, 0, 0).max() if want.numel() else want.new_zeros(())
    return Budget(torch.full_like(want, _CLEAR) + _CLEAR_PART * largest, "clear mistakes")


@dataclass
class Reach:
    """The state of an op's predicates.

    Args:
        wanted: which pairs of atoms are predicates; see `grammar.pairs`.
        held: those that hold in some recorded call.
        reached: those whose planting made a law fail. The diagonal is for single atoms.
        tries: in how many evaluations each was planted.
        plantings: the number of plantings.
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
    """Plant each predicate not reached yet, until laws notice it or its tries are used up."""
    for evaluation in sorted(evaluations, key=_order):
        rows = np.array([[a.holds(call) for a in reach.atoms] for call in evaluation.calls])
        together = np.triu(rows.T.astype(np.float32) @ rows.astype(np.float32) > 0)
        reach.held |= together & (reach.wanted == 1)
        open_ = together & (reach.wanted == 1) & ~reach.reached & (reach.tries < TRIES)
        i, j = np.nonzero(open_)
        if not len(i):
            continue
        # The calls in which each pair holds, and the pairs of each set of calls.
        patterns = np.packbits(rows[:, i] & rows[:, j], axis=0).T
        sets, which = np.unique(patterns, axis=0, return_inverse=True)
        for number in np.argsort(-np.bincount(which.ravel())):
            members = which.ravel() == number
            calls = np.nonzero(np.unpackbits(sets[number])[: len(rows)])[0]
            if len(calls) == len(rows) and evaluation.job.law not in _FIRST[:-1]:
                continue
            reach.plantings += 1
            noticed = _noticed(reach.op, evaluation, subject, frozenset(calls.tolist()))
            known = _answered(reach.atoms, noticed)
            a, b = i[members], j[members]
            judged = known[a, b]
            reach.reached[a[judged], b[judged]] = True
            reach.tries[a, b] += 1


def _order(evaluation: Evaluation) -> tuple[int, float]:
    law = evaluation.job.law
    return _FIRST.index(law) if law in _FIRST else len(_FIRST), evaluation.seconds


def _answered(atoms: list[Atom], noticed: frozenset[str] | None) -> Any:
    """Pairs that count as reached if the law noticed these results; None stands for an
    exception.
    """
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
    op: Op, evaluation: Evaluation, subject: Subject, calls: frozenset[int]
) -> frozenset[str] | None:
    """The results that the law finds wrong if these calls are; None if it raises an error."""
    witness, listener = subject.target, _Listener()
    assert isinstance(witness, Witness)
    empty = {
        n for n in calls if not any(evaluation.calls[n].get(f"result {o.name}") for o in op.outputs)
    }

    def spoils(number: int) -> Callable[[str, Tensor], None] | None:
        if number not in calls:
            return None
        return _refuse if number in empty else _spoil

    quiet = Subject(witness, subject.device, listener, _Recall(subject.recall))
    witness.start_again(evaluation, spoils)
    try:
        with witness.eager():
            LAWS[evaluation.job.law](op, evaluation.case, quiet)
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
    """Change one element of a result by more than the largest element."""
    if not result.numel():
        return
    # Bypass autograd: an output may be an input or a view that others hold.
    result = result.data
    place = torch.unravel_index(torch.tensor(result.numel() * 5 // 8), result.shape)
    value = result[place]
    largest = result.abs().nan_to_num(0, 0, 0).max()
    result[place] = value + largest + 1 if bool(value.isfinite()) else 0.0
