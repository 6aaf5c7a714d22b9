"""Build the tensors of a case."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy
import torch
from torch import Tensor

from properties.cases import structures
from properties.cases.case import Case
from properties.cases.contexts import WITHOUT_GRADIENTS
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import relaid
from properties.cases.values import COTANGENTS, RECIPES, Blank
from properties.catalogue.kinds import is_delta
from properties.catalogue.op import Argument, Op, Output, Role


def boundaries(lengths: Sequence[int]) -> list[int]:
    """`cu_seqlens` of sequences of these lengths."""
    return [0, *accumulate(lengths)]


def token_axis(dims: Sequence[str]) -> int | None:
    """Return the axis of the tokens, queries or keys; None if there is none."""
    return next((axis for axis, dim in enumerate(dims) if dim in ("T", "S")), None)


def sizes(op: Op, case: Case) -> dict[str, int]:
    """Return the size of every letter in the declaration of `op`."""
    known = dict(case.dims)
    known["T"] = sum(case.lengths) if case.packed else case.lengths[0]
    keys = case.lengths if case.key_lengths is None else case.key_lengths
    known["S"] = sum(keys) if case.packed else keys[0]
    known["N"] = case.sequences
    sequences = case.lengths if case.packed else case.lengths[:1]
    known |= {dim: sum(count(case, t) for t in sequences) for dim, count in op.rows.items()}
    return known | op.sizes(replace(case, dims=known))


def shape(case: Case, argument: Argument, known: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an argument, given the size of every letter.

    A dim such as `#B` is 1 where the case broadcasts the tensor, else B.
    """
    ones = case.broadcast.get(argument.name, "")
    dims = argument.dims.split()
    return tuple(1 if d[0] == "#" and d[1:] in ones else known[d.removeprefix("#")] for d in dims)


def work(op: Op, case: Case) -> float:
    """Return how many numbers a form of the oracle may hold at once, for the longest sequence."""
    known = sizes(op, case)
    pairs = zip(case.lengths, case.key_lengths or case.lengths, strict=True)
    return case.dims["B"] * max(op.work(known | {"T": t, "S": s}) for t, s in pairs)


def largest_logit(op: Op, tensors: Mapping[str, Tensor], scale: float | None) -> float | None:
    """Return `max |scale · q kᵀ|` over all pairs of tokens; None if there are none."""
    q, k = (
        next(tensors[a.name] for a in op.arguments if a.role is role).detach().double()
        for role in (Role.QUERY, Role.KEY)
    )
    if not q.numel() or not k.numel():
        return None
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    factor = q.shape[-1] ** -0.5 if scale is None or scale == -1 else abs(scale)
    return factor * float((q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).abs().max())


def present(op: Op, case: Case) -> list[Argument]:
    """Return the arguments for which a case has a tensor of its own."""
    return [
        a
        for a in op.arguments
        if (not a.optional or a.name in case.given) and a.name not in case.same
    ]


def trained(op: Op, case: Case) -> tuple[str, ...]:
    """Return the tensors that need a gradient in a case."""
    return tuple(
        a.name for a in present(op, case) if a.differentiable and a.name not in case.frozen
    )


def differentiable_outputs(op: Op, case: Case) -> list[Output]:
    """Return the requested outputs that gradients flow through."""
    return [
        output
        for output in op.outputs
        if output.differentiable and (output.asked_by is None or case.options.get(output.asked_by))
    ]


def build(op: Op, case: Case, device: torch.device | str = "cpu") -> Inputs:
    """Build the tensors and options of a case, bit for bit the same on every machine."""
    generator = torch.Generator().manual_seed(case.seed)
    known = sizes(op, case)
    # Either integer width is allowed; the seed decides.
    index = torch.int32 if case.seed >> 8 & 1 else torch.int64
    tensors = {
        a.name: _filled(op, case, a, _dtype(case, a, index), known, generator).to(device)
        for a in op.arguments
        if not a.optional or a.name in case.given
    }
    amended = op.amend(case, known, tensors)
    tensors = {n: relaid(x, case.layout_of(n)) for n, x in amended.items() if n not in case.same}
    lists = {n: v for n, v in case.options.items() if isinstance(v, (list, tuple))}
    if case.packed:
        # Without lengths of their own, keys have no boundaries of their own.
        each = zip(op.packed_by, (case.lengths, case.key_lengths), strict=False)
        lists |= {name: boundaries(lengths) for name, lengths in each if lengths is not None}
    for name, numbers in lists.items():
        x = torch.tensor(numbers, dtype=index, device=device)
        tensors[name] = relaid(x, case.layout_of(name))
    options = {n: _number(case, v) for n, v in case.options.items() if n not in tensors}
    if "structure" in options:
        options["structure"] = structures.build(case, device)
    widths = {n: amended[n].shape[-1] for n in case.same}
    channels = {n: w for n, w in widths.items() if w < tensors[case.same[n]].shape[-1]}
    return Inputs(tensors, options, case.same, channels, trained(op, case))


def _dtype(case: Case, argument: Argument, index: torch.dtype) -> torch.dtype:
    match argument.dtype:
        case "index":
            return index
        case "bool":
            return torch.bool
        case "either" if argument.name in case.float32:
            return torch.float32
        case "case" | "either":
            return case.torch_dtype
        case _:
            return torch.float32


def on_integers(op: Op, case: Case) -> Case:
    """Return the case with small integers for values, so that no sum or product rounds.

    Options are exact. No token is repeated, as its sums grow with the length. If the bounds of an
    implementation leave no exact options, the values are no integers.
    """
    exact = {o.name: o.exact[case.seed % len(o.exact)] for o in op.options if o.exact}
    options = {**case.options, **{n: v for n, v in exact.items() if n in case.options}}
    layout = "contiguous" if case.layout == "repeated" else case.layout
    layouts = {n: one for n, one in case.layouts.items() if one != "repeated"}
    exact_case = replace(case, values="integers", options=options, layout=layout, layouts=layouts)
    return op.settle(exact_case)


def _thinned(gradient: Tensor) -> Tensor:
    """Keep at most 16 value dims of a cotangent and set the others to 0.

    The gradient of k_i · k_j sums over tokens and value dims. With 128 dims it reached 337, which
    does not fit into the 8 bits of bfloat16's mantissa, and a 16-bit product may round.
    """
    dims = torch.arange(gradient.shape[-1], device=gradient.device)
    return gradient * (dims % -(-max(len(dims), 1) // 16) == 0)


def _number(case: Case, value: Any) -> Any:
    return numpy.float64(value) if case.numbers == "numpy" and type(value) is float else value


def _filled(
    op: Op,
    case: Case,
    argument: Argument,
    dtype: torch.dtype,
    known: Mapping[str, int],
    generator: torch.Generator,
) -> Tensor:
    if argument.fill is not None:
        return argument.fill(case, known, generator).to(dtype)
    dims = argument.dims.split()
    axis = token_axis(dims)
    lengths = case.key_lengths if axis is not None and dims[axis] == "S" else case.lengths
    bounds = boundaries(lengths or case.lengths)
    spans = list(pairwise(bounds if case.packed else bounds[:2]))
    any_size = argument.name in op.of_any_size(case)
    blank = Blank(argument.role, shape(case, argument, known), axis, spans, dtype, any_size)
    x = RECIPES[case.values](blank, generator)
    # One tensor may be keys and values.
    roles = {a.role for a in op.arguments if case.same.get(a.name, a.name) == argument.name}
    if op.nonnegative(case) and roles & {Role.QUERY, Role.KEY}:
        x = x.abs()
    elif op.nonnegative(case) and argument.role is Role.STATE:
        x[..., -1].abs_()
    return x.to(dtype)


def build_cotangents(op: Op, case: Case, device: torch.device | str = "cpu") -> Results:
    """Return a cotangent for each output that gets one, by the output's name.

    Empty if the call is without gradients or no tensor needs one.
    """
    generator = torch.Generator().manual_seed(case.seed + 1)
    known = sizes(op, case)
    made: Results = {}
    if case.context in WITHOUT_GRADIENTS or not trained(op, case):
        return made
    for output in differentiable_outputs(op, case):
        shape = tuple(known[d] for d in output.dims.split())
        blank = Blank(Role.VALUE, shape, None, (), case.torch_dtype, any_size=True)
        recipe = case.values if case.values in ("integers", "wide_range") else "gaussian"
        x = RECIPES[recipe](blank, generator)
        if recipe != "integers":
            x = COTANGENTS[case.cotangents](x, case.torch_dtype, output.dtype_in(case), generator)
        elif is_delta(op):
            x = _thinned(x)
        if output.name in case.silent:
            continue
        dtype = output.dtype_in(case)
        name = f"d{output.name}"
        if x.dim() and not any(x.stride()):
            # `to` would give each element an address.
            one = torch.ones((), dtype=dtype, device=device)
            made[output.name] = one.expand(shape)
            continue
        layout = "contiguous" if output.asked_by and name not in case.layouts else None
        made[output.name] = relaid(x.to(dtype).to(device), layout or case.layout_of(name))
    return made
