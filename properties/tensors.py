"""From a case to tensors, and from tensors to the results of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.catalogue.op import Argument, Function, Op, Role
from properties.layouts import relaid
from properties.values import RECIPES, Blank

Results = dict[str, Tensor]


def boundaries(lengths: Sequence[int]) -> list[int]:
    """`cu_seqlens` of sequences of these lengths."""
    return [0, *accumulate(lengths)]


def sizes(op: Op, case: Case) -> dict[str, int]:
    """The size of every letter that the declaration of `op` uses."""
    known = dict(case.dims)
    known["T"] = sum(case.lengths) if case.packed else case.lengths[0]
    keys = case.lengths if case.key_lengths is None else case.key_lengths
    known["S"] = sum(keys) if case.packed else keys[0]
    known["N"] = case.sequences
    return known | op.sizes(replace(case, dims=known))


def work(op: Op, case: Case) -> float:
    """Numbers that a form of the oracle may hold at once: those of the longest sequence."""
    known = sizes(op, case)
    pairs = zip(case.lengths, case.key_lengths or case.lengths, strict=True)
    return case.dims["B"] * max(op.work(known | {"T": t, "S": s}) for t, s in pairs)


@dataclass(frozen=True)
class Inputs:
    """What an op is called with: tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Inputs":
        """The same numbers in another float dtype, contiguous, on another device."""
        return Inputs(
            {
                n: x.to(device, dtype if x.is_floating_point() else x.dtype).contiguous()
                for n, x in self.tensors.items()
            },
            self.options,
        )

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Inputs":
        return Inputs({**self.tensors, **tensors}, self.options)

    def with_options(self, **options: Any) -> "Inputs":
        return Inputs(self.tensors, {**self.options, **options})


def build(op: Op, case: Case, device: torch.device | str = "cpu") -> Inputs:
    """The tensors and options of a case, bit for bit the same wherever they are built."""
    generator = torch.Generator().manual_seed(case.seed)
    known = sizes(op, case)
    tensors = {}
    for argument in op.arguments:
        if argument.optional and argument.name not in case.given:
            continue
        x = _filled(op, case, argument, known, generator)
        lower = argument.dtype == "case" or (
            argument.dtype == "either" and argument.name not in case.float32
        )
        dtype = case.torch_dtype if lower else torch.float32
        tensors[argument.name] = relaid(x.to(dtype).to(device), case.layout)
    options = dict(case.options)
    for name, value in options.items():
        if isinstance(value, (list, tuple)):
            tensors[name] = torch.tensor(value, dtype=torch.int64, device=device)
    options = {n: v for n, v in options.items() if n not in tensors}
    if case.packed:
        lengths = (case.lengths, case.key_lengths or case.lengths)
        # Either width is allowed: the seed decides, as it does of all that is in tensors.
        width = torch.int32 if case.seed >> 8 & 1 else torch.int64
        for name, each in zip(op.packed_by, lengths, strict=False):
            tensors[name] = torch.tensor(boundaries(each), dtype=width, device=device)
    return Inputs(tensors, options)


def _filled(
    op: Op, case: Case, argument: Argument, known: Mapping[str, int], generator: torch.Generator
) -> Tensor:
    dims = argument.dims.split()
    axis = next((i for i, d in enumerate(dims) if d in ("T", "S")), None)
    lengths = case.key_lengths if axis is not None and dims[axis] == "S" else case.lengths
    bounds = boundaries(lengths or case.lengths)
    spans = list(pairwise(bounds if case.packed else bounds[:2]))
    blank = Blank(argument.role, tuple(known[d] for d in dims), axis, spans)
    x = RECIPES[case.values](blank, generator)
    if op.nonnegative(case) and argument.role in (Role.QUERY, Role.KEY):
        return x.abs()
    if op.nonnegative(case) and argument.role is Role.STATE:
        x[..., -1].abs_()
    return x


def cotangents(op: Op, case: Case, device: torch.device | str = "cpu") -> Results:
    """A gradient for every output that the case asks for, by the output's name."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    known = sizes(op, case)
    made = {}
    for output in op.outputs:
        if output.asked_by is not None and not case.options.get(output.asked_by):
            continue
        if not output.differentiable:
            continue
        shape = tuple(known[d] for d in output.dims.split())
        blank = Blank(Role.VALUE, shape, None, ())
        recipe = "integers" if case.values == "integers" else "gaussian"
        x = RECIPES[recipe](blank, generator)
        dtype = torch.float32 if output.dtype == "float32" else case.torch_dtype
        layout = case.layout if output.asked_by is None else "contiguous"
        made[output.name] = relaid(x.to(dtype).to(device), layout)
    return made


def _own_copy(x: Tensor) -> Tensor:
    """`x` in memory of its own, with the strides it has and its history: one may write to it."""
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage().clone())
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def run(
    op: Op,
    function: Function,
    inputs: Inputs,
    gradients_of: Results | None = None,
    **extra: Any,
) -> Results:
    """Call `function` and return its outputs by name, and the gradient of x as "dx".

    Args:
        gradients_of: cotangents by output; without them only the forward runs.
        extra: arguments of this implementation alone, `mode` and `tile`.
    """
    differentiable = [a.name for a in op.arguments if a.differentiable and a.name in inputs.tensors]
    tensors = dict(inputs.tensors)
    if gradients_of is not None:
        for name in differentiable:
            tensors[name] = tensors[name].detach().requires_grad_()
    given = dict(tensors)
    if inputs.options.get("inplace"):
        name = op.arguments[0].name
        given[name] = _own_copy(tensors[name])
    named = _named(op, function(**given, **inputs.options, **extra))
    if gradients_of is None:
        return {name: y.detach() for name, y in named.items()}
    # An output without history has no gradient to give: its inputs' gradients count as zero.
    wanted = [n for n in named if n in gradients_of and named[n].requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(differentiable)
    if wanted:
        gradients = torch.autograd.grad(
            [named[n] for n in wanted],
            [tensors[n] for n in differentiable],
            [gradients_of[n].to(named[n].dtype) for n in wanted],
            allow_unused=True,
        )
    results = {name: y.detach() for name, y in named.items()}
    for name, gradient in zip(differentiable, gradients, strict=True):
        # A gradient that is None and one that is zero say the same.
        results[f"d{name}"] = torch.zeros_like(tensors[name]) if gradient is None else gradient
    return results


def transformable(op: Op, function: Function, inputs: Inputs, gradients_of: Results) -> Results:
    """What `run` returns, for functions of PyTorch operations alone; for `torch.func.vmap` too."""
    differentiable = [a.name for a in op.arguments if a.differentiable and a.name in inputs.tensors]
    written = op.arguments[0].name

    def call(given: Results) -> Results:
        given = {**inputs.tensors, **given}
        if inputs.options.get("inplace"):
            given[written] = given[written].clone()
        return _named(op, function(**given, **inputs.options))

    named, pull, *_ = torch.func.vjp(call, {n: inputs.tensors[n] for n in differentiable})
    (gradients,) = pull(
        {n: gradients_of[n] if n in gradients_of else torch.zeros_like(y) for n, y in named.items()}
    )
    return {**named, **{f"d{name}": gradient for name, gradient in gradients.items()}}


def _named(op: Op, returned: Any) -> Results:
    """The outputs by name, without those that are None."""
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return {o.name: y for o, y in zip(op.outputs, outputs, strict=False) if y is not None}
