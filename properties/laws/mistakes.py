"""The bad calls that follow from the declaration of an op, which the law `rejection` makes.

Each tensor gets another rank, another dtype, and along each shared dim another size, alone and
together with all tensors of that dim; None stands for a tensor that the op needs; each option gets
its declared bad values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.cases.sequences import dims_of, tensors_of
from properties.catalogue.op import Op
from reference.arguments import same_dtype

SIZES = "a tensor of another size"
RANK = "a tensor of another rank"
DTYPE = "a tensor of another dtype"
BOUNDARIES = "a tensor of boundaries that do not fit"
ABSENT = "None for a tensor"


@dataclass(frozen=True)
class Mistake:
    """A call that must be rejected.

    Args:
        names: arguments, one of which the message must name.
        everywhere: the oracle must reject it too; False if only kernels have the argument.
        kind: of mistakes that a library makes together; empty for one of its own.
    """

    what: str
    arguments: dict[str, Any]
    names: tuple[str, ...]
    everywhere: bool = True
    kind: str = ""

    @property
    def group(self) -> str:
        """The kind, or for a mistake of its own what it is."""
        return self.kind or self.what


def in_turn(each: Iterable[Mistake], case: Case) -> list[Mistake]:
    """Mistakes in an order of the case's own: each group is as likely to come first.

    The law ends with the first that is not refused, which would hide all others. A place follows
    from the name, so that another mistake in the list moves none.
    """

    def place(name: str) -> float:
        return Random(f"{case.seed} {name}").random()

    return sorted(each, key=lambda mistake: (place(mistake.group), place(mistake.what)))


def mistakes(op: Op, case: Case, inputs: Inputs) -> Iterator[Mistake]:
    """Every mistake that the declaration of `op` implies for this case."""
    tensors = tensors_of(op, inputs)
    for name, x in tensors.items():
        yield Mistake(f"{name} of another rank", {name: x[None]}, (name,), kind=RANK)
        yield Mistake(f"{name} that is a list", {name: [1.0]}, (name,))
        if not x.is_floating_point():
            yield Mistake(f"{name} of floats", {name: x.float()}, (name,), kind=DTYPE)
            continue
        yield Mistake(f"{name} of integers", {name: x.to(torch.int32)}, (name,), kind=DTYPE)
        yield Mistake(f"{name} in float64", {name: x.double()}, (name,), False, DTYPE)
    for argument in op.arguments:
        if not (argument.optional or argument.takes_none):
            name = argument.name
            yield Mistake(f"{name}=None", {name: None}, (name,), kind=ABSENT)
    yield from _mixed_dtypes(op, case, tensors)
    dims = {n: dims_of(op, n) for n in tensors}
    alike = [[n for n in dims if dims[n] == those] for those in dict.fromkeys(dims.values())]
    for names in [*([n] for n in dims), *(those for those in alike if len(those) > 1)]:
        for axis, dim in enumerate(dims[names[0]]):
            # A dense batch has one sequence a row.
            same = {dim, "N"} if dim == "B" else {dim}
            sharing = [n for n in dims if n not in names and same & {*dims[n]}]
            # A dim `#B` may be 1 or B; the mistakes of an op know which sizes are wrong.
            if dim[0] != "#" and sharing and tensors[names[0]].shape[axis]:
                what = f"{' and '.join(names)} with {dim} larger by one"
                longer = {n: _longer(tensors[n], axis) for n in names}
                yield Mistake(what, longer, (*names, *sharing, *op.packed_by), kind=SIZES)
    for option in op.options:
        for bad in option.bad:
            yield Mistake(f"{option.name}={bad!r}", {option.name: bad}, (option.name,))
    if any(option.name == "inplace" for option in op.options):
        yield from _overlapping_in_place(op, tensors)
    for name in op.packed_by:
        if name in inputs.tensors:
            yield from _bad_boundaries(name, inputs.tensors[name])
    if case.packed:
        yield Mistake("packed sequences in a batch of two", _twice(op, tensors), op.packed_by)
    yield Mistake("a mode that does not exist", {"mode": "no_such_mode"}, ("mode",), False)
    for tile in (10**6, -1, "large", 1.0):
        yield Mistake(f"tile={tile!r}", {"tile": tile}, ("tile",), False)
    yield from _refused(op, case, inputs)
    if {"G", "R"} <= op.dims.keys() and case.dims["G"]:
        none = _without_heads(op, tensors)
        yield Mistake("no heads that read those of the keys", none, tuple(none), kind=SIZES)
    yield from (Mistake(what, given, (name,)) for what, given, name in op.mistakes(case, inputs))


def _without_heads(op: Op, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with H heads, with none."""
    dims = {n: [letter.removeprefix("#") for letter in dims_of(op, n)] for n in tensors}
    return {n: x.narrow(dims[n].index("H"), 0, 0) for n, x in tensors.items() if "H" in dims[n]}


def _mixed_dtypes(op: Op, case: Case, tensors: dict[str, Tensor]) -> Iterator[Mistake]:
    """Each tensor of a group that must share one dtype, in another dtype; each other tensor, which
    may be in float32, in 16 bits that are not those of the case.
    """
    names = [name for name in same_dtype(op.oracle) if name in tensors]
    for name in names if len(names) > 1 else ():
        x = tensors[name]
        other = torch.bfloat16 if x.dtype == torch.float32 else torch.float32
        yield Mistake(f"{name} in another dtype", {name: x.to(other)}, tuple(names), kind=DTYPE)
    first = op.arguments[0].name
    for name, x in tensors.items():
        # The first argument says what the dtype of the case is.
        if x.is_floating_point() and name not in {*names, first}:
            for other in {torch.bfloat16, torch.float16} - {case.torch_dtype}:
                what = f"{name} in {str(other).removeprefix('torch.')}"
                yield Mistake(what, {name: x.to(other)}, (name,), False, DTYPE)


def _overlapping_in_place(op: Op, tensors: dict[str, Tensor]) -> Iterator[Mistake]:
    """Pass a tensor that is written in place with one element for all along each axis in turn, or
    with slices that share their first and last elements.
    """
    name = op.arguments[0].name
    x = tensors[name].contiguous()
    for axis, size in enumerate(x.shape):
        if size > 1 and x.numel():
            for step in {0, x.stride(axis) - 1}:
                strides = (*x.stride()[:axis], step, *x.stride()[axis + 1 :])
                overlapping = {name: x.as_strided(x.shape, strides), "inplace": True}
                yield Mistake(f"inplace of {name}, strides {strides}", overlapping, ("inplace",))


def _longer(x: Tensor, axis: int) -> Tensor:
    return torch.cat([x, x.narrow(axis, 0, 1)], axis)


def _twice(op: Op, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    batched = {n: dims_of(op, n).index("B") for n in tensors if "B" in dims_of(op, n)}
    return {n: torch.cat([tensors[n]] * 2, axis) for n, axis in batched.items()}


def _bad_boundaries(name: str, cu_seqlens: Tensor) -> Iterator[Mistake]:
    longer = cu_seqlens.clone()
    longer[-1] += 1
    first = cu_seqlens + 1
    first[-1] -= 1
    unfit = {"that ends past the tokens": longer, "that is empty": cu_seqlens[:0]}
    if cu_seqlens[-1] > 0:
        unfit |= {"that ends before the tokens": cu_seqlens * 0, "that starts at 1": first}
    if len(cu_seqlens) > 2:
        falling = cu_seqlens.clone()
        falling[1] = falling[-1] + 1
        unfit["that decreases"] = falling
    for what, bounds in unfit.items():
        yield Mistake(f"{name} {what}", {name: bounds}, (name,), kind=BOUNDARIES)
    yield Mistake(f"{name} of floats", {name: cu_seqlens.float()}, (name,))
    yield Mistake(f"{name} that is a list", {name: cu_seqlens.tolist()}, (name,))
    yield Mistake(f"{name} of another rank", {name: cu_seqlens[None]}, (name,))


def _refused(op: Op, case: Case, inputs: Inputs) -> Iterator[Mistake]:
    """Arguments that this mode must reject."""
    for name in op.mode(case.mode).refuses:
        option = next((o for o in op.options if o.name == name), None)
        if option is not None:
            yield Mistake(f"{name} in mode {case.mode}", {name: not option.default}, (name,), False)
            continue
        model = next(x for n, x in inputs.tensors.items() if _same_dims(op, n, name))
        yield Mistake(f"{name} in mode {case.mode}", {name: -model.abs()}, (name,), False)


def _same_dims(op: Op, name: str, other: str) -> bool:
    named = {argument.name for argument in op.arguments}
    return name in named and dims_of(op, name) == dims_of(op, other)
