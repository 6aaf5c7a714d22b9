"""Run the suite's jobs once with the oracle as implementation, and record their calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import process_time
from typing import Any
from unittest import mock

import hypothesis
import torch
from hypothesis import Phase, given, settings
from torch import Tensor

from properties.cases import calls
from properties.cases.case import Case
from properties.cases.sequences import dims_of
from properties.cases.tensors import sizes
from properties.catalogue.op import Function, Op
from properties.jobs import Job, drawn, hypothesis_test
from properties.laws import LAWS, Subject
from properties.mutants.triggers import facts
from properties.mutants.triggers.facts import Facts
from properties.targets.oracle import compute
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
    """The oracle in place of our kernels: cases are drawn as for those, and calls are recorded.

    Args:
        spoils: call number → what makes its results wrong, or None to leave it right; None to
            record calls instead.
        shapes: of the outputs by name, to return zeros while recording.
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
        self.shapes: Mapping[str, Sequence[int]] | None = None
        self._compiling = False
        self.beside: list[int] = []
        # The tensors of the previous call with their contents, and its options.
        self._before: tuple[dict[int, tuple[Tensor, Tensor]], Mapping[str, Any]] = ({}, {})

    def tiles(self, case: Case) -> Mapping[int, int]:
        return self.ours.tiles(case)

    def architectures(self, case: Case) -> tuple[str, ...]:
        return self.ours.architectures(case)

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
            if self.shapes is None:
                returned = compute(op, given)
            else:
                returned = _zeros(op, given, self.shapes)
            known |= self._of_context() | self._of_the_call_before(op, given)
            self.calls.append(known)
            for name, y in _named(op, returned).items():
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
        returned = compute(op, given if spoil is None else _spoiling_gradients(op, given, spoil))
        self.calls.append({})
        if spoil is not None:
            for name, y in _named(op, returned).items():
                spoil(name, y)
        return returned

    def _of_context(self) -> Facts:
        if self._compiling:
            return {"context": "compiled"}
        if torch.is_inference_mode_enabled():
            return {"context": "inference_mode"}
        if not torch.is_grad_enabled():
            return {"context": "no_grad"}
        if torch.get_default_dtype() == torch.bfloat16:
            return {"context": "bfloat16_by_default"}
        return {"context": "autocast" if torch.is_autocast_enabled("cpu") else "grad"}

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
        """Run compiled cases eagerly, but record them as compiled."""

        def as_it_is(function: Function) -> Function:
            def called(**given: Any) -> Any:
                self._compiling = True
                try:
                    return function(**given)
                finally:
                    self._compiling = False

            return called

        with (
            mock.patch.object(calls, "compiled", as_it_is),
            mock.patch.object(calls, "_call_before", self._beside(calls._call_before)),
            mock.patch.object(calls, "_call_between", self._beside(calls._call_between)),
        ):
            yield

    def _beside(self, call: Callable[..., None]) -> Callable[..., None]:
        """Count the calls that `call` makes, or repeat the count without making them."""

        def called(*given: Any) -> None:
            if self.spoils is None:
                made = len(self.calls)
                call(*given)
                self.beside.append(len(self.calls) - made)
                return
            known = next(self._known, None)
            if known is None:
                # A glance records the first call of a law only.
                call(*given)
                return
            for _ in range(known):
                spoil = self.spoils(len(self.calls))
                self.calls.append({})
                if spoil is not None:
                    # A call without results to make wrong raises an error instead.
                    spoil("", torch.empty(0))

        return called


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x, y)
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal(x[name], y[name]) for name in x)
    return type(x) is type(y) and bool(x == y)


def _named(op: Op, returned: Tensor | tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    results = returned if isinstance(returned, tuple) else (returned,)
    named = zip(op.outputs, results, strict=True)
    return {output.name: y for output, y in named if y is not None}


def _zeros(
    op: Op, given: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> Tensor | tuple[Tensor | None, ...]:
    """Zeros as results, through which gradients flow to all trained tensors."""
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    linked = sum((0.0 * x.float().sum() for x in tensors if x.requires_grad), torch.zeros(()))
    asked = [o.asked_by is None or bool(given.get(o.asked_by)) for o in op.outputs]
    results: list[Tensor | None] = [
        torch.zeros(*shapes[o.name], dtype=tensors[0].dtype) + linked.to(tensors[0].dtype)
        if wanted
        else None
        for o, wanted in zip(op.outputs, asked, strict=True)
    ]
    first = results[0]
    return first if len(results) == 1 and first is not None else tuple(results)


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


def record(job: Job, op: Op, subject: Subject, examples: int) -> list[Evaluation]:
    """Evaluate a job on this many examples of the profile ci."""
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
    with witness.eager():
        settings(settings.get_profile("ci"), max_examples=examples)(test)()
    unique = {one.case: one for one in made}
    return [one for one in unique.values() if one.calls]


def glance(job: Job, op: Op, subject: Subject, examples: int, seed: int) -> list[Evaluation]:
    """Record only the first call of a law that compares with the oracle, without running the
    oracle.

    Planting decides whether the law judges that call.
    """
    witness = subject.target
    assert isinstance(witness, Witness)
    made: list[Evaluation] = []

    def look(bundle: list[Case]) -> None:
        for case in bundle:
            adapted = LAWS[job.law].adapt(op, case)
            known = sizes(op, adapted)
            witness.shapes = {o.name: [known[d] for d in o.dims.split()] for o in op.outputs}
            one = Evaluation(job, case, witness.start(), witness.beside)
            inputs = subject.inputs(op, adapted)
            subject.run(op, adapted, inputs, subject.cotangents(op, adapted))
            made.append(one)

    most = settings(
        settings.get_profile("ci"),
        max_examples=examples,
        derandomize=False,
        database=None,
        phases=[Phase.generate],
    )
    test = hypothesis.seed(seed)(most(given(drawn(job, op, witness))(look)))
    try:
        with witness.eager():
            test()
    finally:
        witness.shapes = None
    return [one for one in made if one.calls]
