"""Laws, the subjects they judge, and the violations they raise."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from properties.cases import structures
from properties.cases.calls import outputs_and_gradients
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import OVERLAPPING
from properties.cases.tensors import build, build_cotangents
from properties.catalogue.op import Function, Op
from properties.device import as_architecture, configured
from properties.laws.fingerprint import Fingerprint, fingerprint
from properties.targets import Target
from properties.targets.ledger import Fault, Ledger
from properties.verdict.excess import Excess
from properties.verdict.report import Repro

Recall = Callable[[tuple[Any, ...], Callable[[], Any]], Any]


@dataclass(frozen=True)
class Subject:
    """An implementation under test, its device, and its known failures.

    Args:
        recall: maps (what an oracle's answer depends on, how to compute it) to the answer; a caller
            that repeats cases may cache here. The first begins with the name of the op and what is
            computed, "results" or "budgets".
        quick: accept clear passes with fewer perturbed runs. The fraction of the budget is then too
            large.
    """

    target: Target
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    recall: Recall = field(default=lambda about, compute: compute(), repr=False)
    quick: bool = False

    def inputs(self, op: Op, case: Case) -> Inputs:
        return build(op, case, self.device)

    def cotangents(self, op: Op, case: Case) -> Results:
        return build_cotangents(op, case, self.device)

    def repro(self, law: str, case: Case) -> Repro:
        return Repro(law, case, self.device, self.target.name)

    def function(self, op: Op) -> Function:
        return self.ledger.watching(op, self.target.function(op))

    def run(self, op: Op, case: Case, inputs: Inputs, cotangents: Results | None = None) -> Results:
        """Return the target's results for these inputs, in the context of the case."""
        earlier = case.earlier
        if earlier and earlier.get("structure"):
            options = {**case.options, "structure": earlier["structure"]}
            rules = structures.build(replace(case, options=options), self.device)
            earlier = {**earlier, "structure": rules}
        with self.set_up_for(case):
            return outputs_and_gradients(
                op,
                self.function(op),
                inputs,
                cotangents,
                context=case.context,
                earlier=earlier,
                mode=case.called_mode,
                tile=case.tile,
            )

    @contextmanager
    def set_up_for(self, case: Case) -> Iterator[None]:
        """Report the case's architecture to the kernels inside this context, and run the case's
        config of those that are autotuned.
        """
        with as_architecture(case.architecture, self.device), configured(case.tile):
            yield

    def report(self, violation: "Violation") -> None:
        """Raise a violation, unless the ledger excuses it; the law then continues."""
        if not self.ledger.excuses(violation.fault):
            raise violation.of_its_own_type()


class Violation(AssertionError):
    """A law does not hold. Its text is the bug report.

    Args:
        law: the name of the law.
        case: the case that breaks it.
        report: the text.
        fault: the comparison that failed, or a message that says what is wrong.
        also: names of other results that differ.
        excess: how far the worst of all these is off, unless a message says what is wrong.
    """

    def __init__(
        self,
        law: str,
        case: Case,
        report: str,
        fault: Fault = "",
        also: tuple[str, ...] = (),
        excess: Excess | None = None,
    ) -> None:
        super().__init__(report)
        self.law = law
        self.case = case
        self.fault = fault
        self.also = also
        self.excess = excess

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.case.op, self.law, self.fault)

    def of_its_own_type(self) -> "Violation":
        """Return the same violation as an instance of a type of its fingerprint.

        Hypothesis takes failures of one type raised at one line for one bug. All violations are
        raised at one line, so without this it would shrink one bug into another and report only the
        simpler.
        """
        kind, report = _type_of(self.fingerprint), str(self)
        return kind(self.law, self.case, report, self.fault, self.also, self.excess)


@cache
def _type_of(fingerprint: Fingerprint) -> type[Violation]:
    return type("Violation", (Violation,), {"__module__": __name__, "__doc__": str(fingerprint)})


@dataclass(frozen=True)
class Run:
    """One case that a law judges.

    Args:
        law: the name of the law.
        op: as the target has it.
        case: as the law adapted it.
    """

    law: str
    op: Op
    case: Case
    subject: Subject

    def on(self, case: Case) -> "Run":
        """Return the same run of another case."""
        return replace(self, case=case)

    def inputs(self) -> Inputs:
        return self.subject.inputs(self.op, self.case)

    def cotangents(self) -> Results:
        return self.subject.cotangents(self.op, self.case)

    def call(self, inputs: Inputs, cotangents: Results | None = None) -> Results:
        """Return the target's results for these inputs, in the context of the case."""
        return self.subject.run(self.op, self.case, inputs, cotangents)

    @property
    def compares_bits(self) -> bool:
        """Whether two calls that differ in layout, flags or packing must give the same bits.

        On a GPU, another alignment, stride or flag gives another specialisation, in which the
        compiler may contract a·b + c differently. Other libraries promise no bits, and nobody
        promises which mode `auto` takes. Bits are still equal if nothing rounds.
        """
        subject = self.subject
        on_gpu = subject.device.type == "cuda"
        promised = not on_gpu and subject.target.bitwise and not self.case.auto
        return promised or _is_exact(self.op, self.case)


@dataclass(frozen=True)
class Law:
    """A promise about every case of an op.

    Args:
        check: raises a `Violation`, or returns the worst error as a fraction of its budget (0 for
            exact laws).
        adapt: turns any drawn case into one that the law applies to.
        uses: arguments that the law sets or relies on. If the op has them and an implementation
            does not, the law does not apply to that implementation.
        options: values that `adapt` gives to options. If a bound of the implementation puts another
            one back, the law says nothing about the case.
    """

    name: str
    check: Callable[[Run], float]
    adapt: Callable[[Op, Case], Case] = lambda op, case: case
    uses: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, op: Op, case: Case, subject: Subject) -> float:
        """Adapt a case and check it."""
        return self.of_adapted(Run(self.name, op, self.adapt(op, case), subject))

    def of_adapted(self, run: Run) -> float:
        """Check a case that is adapted."""
        given = run.case.options
        stated = all(given.get(name, value) == value for name, value in self.options.items())
        return self.check(run) if stated else 0.0


def within_bounds(op: Op, case: Case) -> bool:
    """Whether the declared bounds of an implementation allow the case.

    A law that changes a drawn case checks this, or settles the case.
    """
    return op.settle(case) == case


def with_own_elements(case: Case) -> Case:
    """The case without layouts in which elements overlap."""
    kept = {n: layout for n, layout in case.layouts.items() if layout not in OVERLAPPING}
    if case.layout not in OVERLAPPING and len(kept) == len(case.layouts):
        return case
    layout = "contiguous" if case.layout in OVERLAPPING else case.layout
    return replace(case, layout=layout, layouts=kept)


def with_a_row(op: Op, case: Case) -> Case:
    """The case with a row of the batch, if it has none."""
    return case if case.dims["B"] else op.settle(case.with_dims(B=1))


def without_float16_subnormals(op: Op, case: Case) -> Case:
    """The case with integers in float16, where a kernel's intermediate values may be subnormal, so
    that results do not scale by powers of two.
    """
    integers = case.dtype == "float16" and "integers" in op.recipes
    return replace(case, values="integers") if integers else case


def _is_exact(op: Op, case: Case) -> bool:
    """Whether nothing rounds: all values are small integers, and no option, such as a scale of 0.3,
    nor anything else, such as a constant decay, multiplies them.
    """
    repeated = "repeated" in (case.layout, *case.layouts.values())
    if case.values != "integers" or "exactness" not in op.laws or repeated:
        return False
    return all(case.options.get(o.name, o.default) in o.exact for o in op.options if o.exact)


def with_known_options(case: Case, **options: Any) -> Case:
    """The case with other values of those options that it has."""
    known = {name: value for name, value in options.items() if name in case.options}
    return case.with_options(**known)
