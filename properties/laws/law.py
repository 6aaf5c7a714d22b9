"""What a law is, whom it judges, and what it says when it is broken."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from properties.cases.case import Case
from properties.cases.layouts import SHARING
from properties.cases.tensors import Inputs, Results, build, cotangents, outputs_and_gradients
from properties.catalogue.op import Function, Op
from properties.device import claiming
from properties.laws.signature import Signature, signature
from properties.targets import Target
from properties.targets.ledger import Fault, Ledger

Recall = Callable[[tuple[Any, ...], Callable[[], Any]], Any]


def _afresh(about: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
    return compute()


@dataclass(frozen=True)
class Subject:
    """An implementation under test, the device that it runs on, and what is known of it.

    Args:
        recall: given what an answer of the oracle follows from, and how to compute it, the answer;
            who asks about the same cases many times may remember.
        quick: acquit without a budget, or with a part of the disturbed runs, where it is clear. The
            fraction of the budget is 0 then, or too large.
    """

    target: Target
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    recall: Recall = field(default=_afresh, repr=False)
    quick: bool = False

    def inputs(self, op: Op, case: Case) -> Inputs:
        return build(op, case, self.device)

    def cotangents(self, op: Op, case: Case) -> Results:
        return cotangents(op, case, self.device)

    def function(self, op: Op) -> Function:
        return self.ledger.watching(op, self.target.function(op))

    def run(
        self, op: Op, case: Case, inputs: Inputs, gradients_of: Results | None = None
    ) -> Results:
        """The results of the target on these inputs, in a call as the case says it."""
        with self.claiming(case):
            return outputs_and_gradients(
                op,
                self.function(op),
                inputs,
                gradients_of,
                context=case.context,
                earlier=case.earlier,
                mode=case.called_mode,
                tile=case.tile,
            )

    def claiming(self, case: Case) -> AbstractContextManager[None]:
        """The device is of the case's architecture meanwhile."""
        return claiming(case.architecture, self.device)

    def report(self, violation: "Violation") -> None:
        """Raise a violation, unless the ledger explains it: the law goes on to what is next."""
        if not self.ledger.excuses(violation.fault):
            raise violation.of_its_own_type()


class Violation(AssertionError):
    """A law does not hold. Its text is the bug report.

    Args:
        law: the name of the law.
        case: that breaks it.
        report: the text.
        fault: the comparison that failed, or the sentence that says what is wrong.
        also: names of other results that differ.
    """

    def __init__(
        self, law: str, case: Case, report: str, fault: Fault = "", also: tuple[str, ...] = ()
    ) -> None:
        super().__init__(report)
        self.law = law
        self.case = case
        self.fault = fault
        self.also = also

    @property
    def signature(self) -> Signature:
        return signature(self.case.op, self.law, self.fault)

    def of_its_own_type(self) -> "Violation":
        """The same violation, of a type that no violation of another signature has.

        Hypothesis takes failures for one bug if they have one type and are raised at one line, and
        all violations are: it would shrink one bug into another and report the simpler one alone.
        """
        return _type_of(self.signature)(self.law, self.case, str(self), self.fault, self.also)


@cache
def _type_of(signature: Signature) -> type[Violation]:
    return type("Violation", (Violation,), {"__module__": __name__, "__doc__": str(signature)})


Check = Callable[[Op, Case, Subject], float]


def _unchanged(op: Op, case: Case) -> Case:
    return case


@dataclass(frozen=True)
class Law:
    """A statement about every case of an op.

    Args:
        check: raises a `Violation`, or returns the worst error as a fraction of its budget, 0
            where the law is exact.
        adapt: turns any drawn case into one of which the law says something.
        uses: arguments that the law sets or leans on. Of an op that has them it says nothing of an
            implementation that lacks one.
    """

    name: str
    check: Check
    adapt: Callable[[Op, Case], Case] = field(default=_unchanged)
    uses: tuple[str, ...] = ()

    def __call__(self, op: Op, case: Case, subject: Subject) -> float:
        return self.check(op, self.adapt(op, case), subject)


def within_bounds(op: Op, case: Case) -> bool:
    """Whether an implementation takes the case as it is, by the bounds that its declaration has.

    A law that changes a drawn case asks this of the changed one, or settles it.
    """
    return op.settle(case) == case


def with_own_elements(case: Case) -> Case:
    """The case without layouts in which several elements share an address."""
    kept = {n: layout for n, layout in case.layouts.items() if layout not in SHARING}
    if case.layout not in SHARING and len(kept) == len(case.layouts):
        return case
    layout = "contiguous" if case.layout in SHARING else case.layout
    return replace(case, layout=layout, layouts=kept)


def summed_in_range(op: Op, case: Case) -> Case:
    """The case with values of which gradients stay in range that are summed over calls.

    What all sequences share has a gradient from each call. Large states make some of those
    overflow in float16, with either sign, and inf - inf says nothing of an implementation.
    """
    each = {"T", "S", "N", "B"}
    shared = any(a.differentiable and not each & set(a.dims.split()) for a in op.arguments)
    if shared and case.dtype == "float16" and case.values == "large_states":
        return op.settle(replace(case, values="gaussian"))
    return case


def with_a_row(op: Op, case: Case) -> Case:
    """The case with a batch that is not empty."""
    return case if case.dims["B"] else op.settle(replace(case, dims={**case.dims, "B": 1}))


def bits_are_comparable(op: Op, case: Case, subject: Subject) -> bool:
    """Whether two calls that differ in layout, flags or packing must give the same bits.

    Another alignment, stride or flag is another specialisation of a kernel, and a GPU's compiler
    may contract a·b + c in one of them and not in the other. Other libraries promise no bits. On
    integers that makes no difference, where nothing else is multiplied by them, as a decay that is
    no argument is. Nor does anyone promise which mode an op takes by itself.
    """
    promised = subject.device.type != "cuda" and subject.target.bitwise and not case.auto
    return promised or (case.values == "integers" and "exactness" in op.laws)


def with_options(case: Case, **options: Any) -> dict[str, Any]:
    """The options of a case with those of `options` that the case has."""
    return {**case.options, **{n: v for n, v in options.items() if n in case.options}}
