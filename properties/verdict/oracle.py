"""One call of the oracle: its results, and the error budget of each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from properties.cases.calls import outputs_and_gradients, transformable
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.tensors import differentiable_outputs, largest_logit, trained
from properties.catalogue.op import Function, Op, Role
from properties.verdict.budgets import budgets
from properties.verdict.compare import Budget
from properties.verdict.computation import Computation, InheritedError
from properties.verdict.precision import ACCUMULATOR, Precision, unit_roundoff
from properties.verdict.sigma import OracleFunction

_COTANGENT = "gradient of "


def oracle_results(op: Op, inputs: Inputs, cotangents: Results | None) -> Results:
    """Run the oracle in float64 on the numbers that the implementation gets."""
    return outputs_and_gradients(op, op.oracle, inputs.to(torch.float64), in_float64(cotangents))


def in_float64(tensors: Results | None) -> Results:
    return {name: x.to("cpu", torch.float64) for name, x in (tensors or {}).items()}


def exact_scores(op: Op, inputs: Inputs) -> Inputs:
    """Put what decides a selection into float32: the noise of a budget would break ties."""
    scores = {a.name for a in op.arguments if a.role is Role.SCORE}
    kept = {n: x.float() if n in scores else x for n, x in inputs.tensors.items()}
    return replace(inputs, tensors=kept)


def gradient_parts(op: Op, inputs: Inputs, cotangents: Results) -> Results:
    """The gradients that autograd adds, rounded, for tensors that are several arguments: "dx" →
    those of all these arguments, stacked, with zeros in channels that are no part of an argument.
    """
    together: dict[str, list[str]] = {}
    for n, other in inputs.same.items():
        if other in inputs.trained:
            together.setdefault(other, [other]).append(n)
    if not together or not cotangents:
        return {}
    alone = {n: inputs.twin(n, inputs.tensors).clone() for n in inputs.same}
    apart = replace(
        inputs,
        tensors={**inputs.tensors, **alone},
        same={},
        channels={},
        trained=(*inputs.trained, *(n for names in together.values() for n in names[1:])),
    )
    found = oracle_results(op, apart, cotangents)

    def whole(name: str, part: Tensor) -> Tensor:
        return pad(part, (0, inputs.tensors[name].shape[-1] - part.shape[-1]))

    return {
        f"d{name}": torch.stack([whole(name, found[f"d{n}"]) for n in names])
        for name, names in together.items()
    }


@dataclass(frozen=True)
class OracleCall:
    """A call of the oracle.

    Args:
        cotangents: in float64, by output.
        want: the oracle's results.
        dtypes: those in which a kernel returns the results.
        parts: see `gradient_parts`.
        called: turns a form of the oracle into the function whose rounding errors count, such as
            one that calls it twice; None if it is that form.
    """

    op: Op
    case: Case
    inputs: Inputs
    cotangents: Results
    want: Results
    dtypes: Mapping[str, torch.dtype]
    parts: Results
    called: Callable[[Function], Function] | None = None

    def budgets(self, precision: Precision, *, form: Function, draws: int) -> dict[str, Budget]:
        """The budget of each result of a kernel that stores operands in this precision.

        Args:
            form: the form of the oracle that is perturbed.
            draws: in how many runs.
        """
        op, case = self.op, self.case
        telescopes = tuple(t for t in op.telescopes(case) if t.gradient in self.want)
        call = self._with_every_gradient() if telescopes else self
        inherited, row_sums = {}, 0.0
        if op.float32_logits and call.cotangents:
            call = call._with_every_output()
            inherited = call._inherited()
            if not any(o.name == "lse" for o in op.outputs):
                row_sums = _of_a_row_sum(call.want["o"], call.dtypes["o"])
        exact = exact_scores(op, call.inputs.to(torch.float64))
        tensors = {**exact.tensors, **{_COTANGENT + name: x for name, x in call.cotangents.items()}}
        how = Computation(
            precision=precision,
            output_dtypes=call.dtypes,
            terms=max(case.lengths + (case.key_lengths or ())) + max(case.dims.values()),
            alike=_has_equal_terms(case),
            gates=tuple(a.name for a in op.arguments if a.role is Role.LOG_DECAY),
            constant_decay=op.constant_decay(case),
            telescopes=telescopes,
            float32_logits=op.float32_logits,
            row_sums=row_sums,
            inherited=inherited,
            backward=frozenset(n for n in (*tensors, *call.want) if _is_backward(op, n)),
            parts=self.parts,
        )
        absolute = None
        function = form if self.called is None else self.called(form)
        if op.multilinear(case):
            absolute = _by_tensors(op, function, exact.with_options(**_absolute_scale(exact)))
        return budgets(
            _by_tensors(op, function, exact),
            tensors,
            call.want,
            how,
            absolute=absolute,
            draws=draws,
            seed=case.seed,
        )

    def _with_every_gradient(self) -> "OracleCall":
        """Telescoping gradients inherit errors even from results that the case does not request."""
        op, case = self.op, self.case
        inputs = replace(self.inputs, trained=trained(op, replace(case, frozen=())))
        silent = {o.name for o in differentiable_outputs(op, case)} - set(self.cotangents)
        zeros = {name: torch.zeros_like(self.want[name]) for name in silent}
        cotangents = {**self.cotangents, **zeros}
        want = oracle_results(op, inputs, cotangents)
        dtypes = {name: self.dtypes.get(name, case.torch_dtype) for name in want}
        return replace(self, inputs=inputs, cotangents=cotangents, want=want, dtypes=dtypes)

    def _with_every_output(self) -> "OracleCall":
        """Gradients of a softmax inherit errors of its output and of its LSE."""
        inputs = self.inputs.with_options(**self.op.asks_for_all)
        nothing = torch.zeros_like(self.want["o"])
        cotangents = {"o": nothing, "lse": nothing[..., 0].transpose(1, 2), **self.cotangents}
        return replace(self, inputs=inputs, cotangents=cotangents)

    def _inherited(self) -> dict[str, InheritedError]:
        """Errors that softmax gradients inherit from the forward pass, as errors of the cotangents.

        The backward kernels recompute the logits but reuse the normalizer. If one weight is nearly
        1, the rounding errors of both, each relative to the logit, cancel in the oracle and not in
        the kernel: the weights of a query are off by a common factor, like its cotangents. Kernels
        also compute `Σ p dp` of a query, which is subtracted from all its `dp`, as `do · o` from
        the rounded output. The cotangent of the LSE enters at the same place.
        """
        scale = self.inputs.options.get("scale")
        factor = ACCUMULATOR * (largest_logit(self.op, self.inputs.given(), scale) or 0.0)
        do, dlse = self.cotangents["o"], self.cotangents["lse"]
        rounded = unit_roundoff(self.dtypes["o"])
        sums = rounded * (do * self.want["o"]).nan_to_num(0, 0, 0).norm(dim=-1)
        return {
            f"{_COTANGENT}o": InheritedError(factor * do, (*do.shape[:-1], 1)),
            f"{_COTANGENT}lse": InheritedError(
                torch.hypot(factor * dlse, sums.transpose(1, 2)), dlse.shape
            ),
        }


def _has_equal_terms(case: Case) -> bool:
    """Whether many terms of a sum are equal, so that their rounding errors are too.

    Tokens are, if a tensor repeats one. If logits are zeros, so that all weights round alike, heads
    of a group are as well, if a tensor repeats one head.
    """
    layouts = {case.layout, *case.layouts.values()}
    return "repeated" in layouts or (case.values == "zeros" and "expanded" in layouts)


def _is_backward(op: Op, name: str) -> bool:
    """Whether it is a cotangent or the gradient "dx" of an argument x."""
    arguments = {argument.name for argument in op.arguments}
    return name.startswith(_COTANGENT) or (name[0] == "d" and name[1:] in arguments)


def _of_a_row_sum(o: Tensor, dtype: torch.dtype) -> float:
    """The relative error of `do · o` beside `dp`: of the rounded output, and of two sums."""
    return math.hypot(unit_roundoff(dtype), ACCUMULATOR * math.sqrt(2 * o.shape[-1]))


def _by_tensors(op: Op, function: Function, inputs: Inputs) -> OracleFunction:
    """The op as a function of its tensors and cotangents only."""

    def of(tensors: Mapping[str, Tensor]) -> Results:
        given = {n: x for n, x in tensors.items() if not n.startswith(_COTANGENT)}
        cotangents = {
            n.removeprefix(_COTANGENT): x for n, x in tensors.items() if n.startswith(_COTANGENT)
        }
        return transformable(op, function, replace(inputs, tensors=given), cotangents)

    return of


def _absolute_scale(inputs: Inputs) -> dict[str, float]:
    """|scale|, if there is one; None and the sentinel -1 stand for a positive scale and stay."""
    scale = inputs.options.get("scale")
    return {} if scale is None or scale == -1 else {"scale": abs(scale)}
