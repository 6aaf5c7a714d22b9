"""Run the suite's jobs once on zeros, and record their calls.

Nothing is computed. The implementation and the oracle return zeros of the right shapes, through
which gradients flow, so every law holds until a result is made wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any
from unittest import mock

import hypothesis
import torch
from hypothesis import Phase, settings
from torch import Tensor

from properties.cases import calls
from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS, Context
from properties.cases.sequences import dims_of
from properties.cases.tensors import sizes
from properties.catalogue import OPS
from properties.catalogue.op import Function, Op, Output
from properties.jobs import Job, hypothesis_test
from properties.laws import Subject
from properties.mutants.triggers import facts
from properties.mutants.triggers.facts import Facts
from properties.targets.oracle import check, compute
from properties.targets.ours import Ours
from properties.targets.target import Target


@dataclass
class Evaluation:
    """A law on a case, and its calls.

    Args:
        calls: the facts of each, in order.
        beside: as of `Witness`.
        seconds: processor time.
    """

    job: Job
    case: Case
    calls: list[Facts] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)
    seconds: float = 0.0


Spoil = Callable[[str, Tensor], None]


class Witness(Target):
    """Zeros in place of our kernels: cases are drawn as for those, and calls are recorded.

    Attributes:
        spoils: call number → what makes its results wrong, or None to leave it right; None to
            record calls instead.
        beside: of each call before or between others, whose results nobody reads, how many calls it
            made: 1, or 0 if it was refused. While results are made wrong, none of them is computed.
    """

    name = "ours"
    takes_auto = Ours.takes_auto
    contexts = Ours.contexts
    cotangents = Ours.cotangents

    def __init__(self, ours: Ours) -> None:
        self.ours = ours
        self.calls: list[Facts] = []
        self._known: Iterator[int] = iter(())
        self.spoils: Callable[[int], Spoil | None] | None = None
        self._context = "grad"
        self._may_be_refused = False
        self.beside: list[int] = []
        # The tensors of the previous call with their contents, and its options.
        self._before: tuple[dict[int, tuple[Tensor, Tensor]], Mapping[str, Any]] = ({}, {})

    def tiles(self, case: Case) -> Mapping[int, int]:
        return self.ours.tiles(case)

    def architectures(self, case: Case) -> tuple[str, ...]:
        return self.ours.architectures(case)

    def declaration(self, op: Op, mode: str) -> Op:
        return hollow(op)

    def start(self) -> list[Facts]:
        """Forget all calls; return the list that records the next ones."""
        self.calls = []
        self.beside = []
        self._before = ({}, {})
        return self.calls

    def start_again(self, one: Evaluation, spoils: Callable[[int], Spoil | None]) -> None:
        """Forget all calls; make those of an evaluation wrong as `spoils` says."""
        self.start()
        self.spoils, self._known = spoils, iter(one.beside)

    def function(self, op: Op) -> Function:
        def witnessed(
            *, mode: str, tile: int | None, **given: Any
        ) -> Tensor | tuple[Tensor | None, ...]:
            if self.spoils is not None:
                return self._spoilt(op, given, self.spoils(len(self.calls)))
            # Before the call writes in place.
            known = facts.of_call(op, mode, tile, given)
            if self._may_be_refused:
                check(OPS[op.name], given)
            returned = op.oracle(**given)
            known |= {"context": self._context, **self._of_the_call_before(op, given)}
            self.calls.append(known)
            for name, y in op.named(returned).items():
                known[f"result {name}"] = y.numel() > 0
                # An in-place result made without gradients has no history.
                if y.requires_grad and torch.is_grad_enabled():
                    y.register_hook(_heard(op, known, name))
            return returned

        return witnessed

    def _spoilt(
        self, op: Op, given: dict[str, Any], spoil: Spoil | None
    ) -> Tensor | tuple[Tensor | None, ...]:
        """The results of a call, made wrong if `spoil` is given."""
        returned = op.oracle(**(given if spoil is None else _spoiling_gradients(op, given, spoil)))
        self.calls.append({})
        if spoil is not None:
            for name, y in op.named(returned).items():
                spoil(name, y)
        return returned

    def _of_the_call_before(self, op: Op, given: Mapping[str, Any]) -> Facts:
        """The changes since the previous call, if they share tensor objects."""
        held, options = self._before
        same = {id(x): x for x in given.values() if isinstance(x, Tensor)}
        now = {key: (x, x.detach().clone()) for key, x in same.items()}
        names = [o.name for o in op.options if not o.auxiliary]
        self._before = now, {name: given.get(name) for name in names}
        common = set(held) & set(now)
        if not common:
            return {}
        changed: Facts = {
            "contents changed": any(
                not torch.equal(held[key][1].nan_to_num(), now[key][1].nan_to_num())
                for key in common
            )
        }
        for name in names:
            changed[f"{name} changed"] = not _equal(options.get(name), given.get(name))
        return changed

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run calls once and eagerly in all contexts, but record each as in its context."""
        with (
            mock.patch.object(calls, "compiled", _as_it_is),
            mock.patch.object(calls, "checkpointed", _as_it_is),
            mock.patch.dict(CONTEXTS, {name: self._noting(name) for name in CONTEXTS}),
            mock.patch.object(calls, "_call_before", self._beside(calls._call_before)),
            mock.patch.object(calls, "_call_between", self._beside(calls._call_between)),
        ):
            yield

    def _noting(self, name: str) -> Context:
        context = CONTEXTS[name]

        @contextmanager
        def entered(device: str) -> Iterator[None]:
            before, self._context = self._context, name
            try:
                with context(device):
                    yield
            finally:
                self._context = before

        return entered

    def _beside(self, call: Callable[..., None]) -> Callable[..., None]:
        """Count the calls that `call` makes, or repeat the count without making them."""

        def called(*given: Any) -> None:
            if self.spoils is None:
                made = len(self.calls)
                self._may_be_refused = True
                try:
                    call(*given)
                finally:
                    self._may_be_refused = False
                self.beside.append(len(self.calls) - made)
                return
            for _ in range(next(self._known)):
                spoil = self.spoils(len(self.calls))
                self.calls.append({})
                if spoil is not None:
                    # A call without results to make wrong raises an error instead.
                    spoil("", torch.empty(0))

        return called


def _as_it_is(function: Function) -> Function:
    return function


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x, y)
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal(x[name], y[name]) for name in x)
    return type(x) is type(y) and bool(x == y)


def hollow(op: Op) -> Op:
    """The op with results of zeros, from each of which gradients of zeros flow to all its tensors.

    So a result counts as depending on tensors that it does not depend on. The LSE is -inf, as of no
    keys, since merging keeps that. An op that merges may have to return its inputs, so it computes.
    """
    if "merging" in op.laws and not op.own_keys:
        return replace(op, oracle=lambda **given: compute(op, given))

    def zeros(**given: Any) -> Tensor | tuple[Tensor | None, ...]:
        tensors = [x for x in given.values() if isinstance(x, Tensor) and x.is_floating_point()]
        nothing = sum((x.flatten()[:0].sum() for x in tensors if x.requires_grad), torch.zeros(()))
        case = _case_of(op, given)
        known = sizes(op, case)
        double = tensors[0].dtype == torch.float64

        def of(o: Output) -> Tensor | None:
            if o.asked_by is not None and not given.get(o.asked_by):
                return None
            value = nothing - torch.inf if o.name == "lse" else nothing
            like = value.to(torch.float64 if double else o.dtype_in(case))
            return like.expand([known[d] for d in o.dims.split()]).contiguous()

        results = tuple(map(of, op.outputs))
        if given.get("inplace"):
            return given[op.arguments[0].name].copy_(results[0])  # type: ignore[no-any-return]
        return results if len(results) > 1 else results[0]  # type: ignore[return-value]

    return replace(op, oracle=zeros, quiet_form=zeros)


def _case_of(op: Op, given: Mapping[str, Any]) -> Case:
    """The sizes and options of a call, as a case."""
    tensors = {a.name: given[a.name] for a in op.arguments if given.get(a.name) is not None}
    dims: dict[str, int] = {}
    for a in (a for a in op.arguments if a.name in tensors):
        dims |= zip(a.dims.split(), tensors[a.name].shape, strict=True)
    if "G" in dims:
        dims["R"] = dims["H"] // dims["G"] if dims["G"] else 1
    bounds = [x for name in op.packed_by if (x := given.get(name)) is not None]

    def lengths(bounds: Tensor | None, dim: str) -> tuple[int, ...]:
        return (dims[dim],) if bounds is None else tuple(bounds.diff().tolist())

    first, last = (bounds[0], bounds[-1]) if bounds else (None, None)
    options = {o.name: given.get(o.name, o.default) for o in op.options}
    return Case(
        op=op.name,
        mode="",
        dtype=str(tensors[op.arguments[0].name].dtype).removeprefix("torch."),
        dims=dims,
        lengths=lengths(first, "T"),
        key_lengths=lengths(last, "S") if "S" in dims else None,
        packed=bool(bounds),
        options={n: x.tolist() if isinstance(x, Tensor) else x for n, x in options.items()},
    )


def _spoiling_gradients(op: Op, given: Mapping[str, Any], spoil: Spoil) -> dict[str, Any]:
    """The arguments, wrapped so that their gradients are wrong."""
    spoilt = dict(given)
    for a in op.arguments:
        x = given.get(a.name)
        if not (isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()):
            continue
        # An in-place input is the call's own copy; other objects serve several calls.
        if not given.get("inplace"):
            x = spoilt[a.name] = x.view_as(x)

        def wrong(gradient: Tensor, name: str = f"d{a.name}") -> Tensor:
            gradient = gradient.clone(memory_format=torch.contiguous_format)
            spoil(name, gradient)
            return gradient

        x.register_hook(wrong)
    return spoilt


def _heard(op: Op, call: Facts, name: str) -> Callable[[Tensor], None]:
    """Record that an output has a cotangent, and so that gradients exist."""
    dims = dims_of(op, name)

    def hear(gradient: Tensor) -> None:
        call.update({"backward": True, f"loud {name}": True})
        call.update({f"d{name} {fact}": True for fact in facts.of_layout(gradient, dims)})
        trained = [a.name for a in op.arguments if call.get(f"trained {a.name}") == "yes"]
        call.update({f"result d{name}": True for name in trained})

    return hear


def record(job: Job, subject: Subject, examples: int, seed: int | None = None) -> list[Evaluation]:
    """Evaluate a job on this many examples: those of the profile ci, or others by their seed."""
    witness = subject.target
    assert isinstance(witness, Witness)
    made: list[Evaluation] = []
    started = process_time()

    def announce(case: Case) -> None:
        nonlocal started
        started = process_time()
        made.append(Evaluation(job, case, witness.start(), witness.beside))

    def observe(case: Case, ratio: float) -> None:
        made[-1].seconds = process_time() - started

    test = hypothesis_test(job, subject, observe, announce)
    most = settings(settings.get_profile("ci"), max_examples=examples)
    if seed is not None:
        most = settings(most, derandomize=False, database=None, phases=[Phase.generate])
        test = hypothesis.seed(seed)(test)
    with witness.eager():
        most(test)()
    unique = {evaluation.case: evaluation for evaluation in made}
    return [evaluation for evaluation in unique.values() if evaluation.calls]
