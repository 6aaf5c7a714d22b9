"""Split the inputs or results of a case into its sequences, and join them again."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.tensors import Inputs, Results, boundaries
from properties.catalogue.op import Argument, Op, Output

Spans = Sequence[tuple[int, int]]


def dims_of(op: Op, name: str) -> tuple[str, ...]:
    """Return the dims of an argument, an output, or the gradient "dx" of the argument x."""
    tensors: tuple[Argument | Output, ...] = (*op.arguments, *op.outputs)
    return next(tuple(x.dims.split()) for x in tensors if name in (x.name, f"d{x.name}"))


def spans(case: Case, dim: str = "T") -> list[tuple[int, int]]:
    """Return the first and one-past-last token of each sequence on the axis `dim`, "T" or "S"."""
    lengths = case.key_lengths if dim == "S" and case.key_lengths is not None else case.lengths
    if case.packed:
        return list(pairwise(boundaries(lengths)))
    return [(0, lengths[0])] * case.sequences


def separate(op: Op, case: Case, tensors: Mapping[str, Tensor]) -> list[Results]:
    """Return the tensors of each sequence as a dense batch of one."""
    return [
        {name: _of_sequence(x, dims_of(op, name), case, n) for name, x in tensors.items()}
        for n in range(case.sequences)
    ]


def _of_sequence(x: Tensor, dims: tuple[str, ...], case: Case, n: int) -> Tensor:
    for axis, dim in enumerate(dims):
        if dim == "N" or (dim == "B" and not case.packed):
            x = x.narrow(axis, n, 1)
        elif dim in ("T", "S"):
            start, stop = spans(case, dim)[n]
            x = x.narrow(axis, start, stop - start)
    return x


def join(op: Op, packed: bool, pieces: Sequence[Mapping[str, Tensor]]) -> Results:
    """Undo `separate`: concatenate along the tokens if packed, else stack along the batch."""
    return {
        name: _joined([piece[name] for piece in pieces], dims_of(op, name), packed)
        for name in pieces[0]
    }


def _joined(parts: list[Tensor], dims: tuple[str, ...], packed: bool) -> Tensor:
    along = ("N", "T", "S") if packed else ("N", "B")
    for axis, dim in enumerate(dims):
        if dim in along:
            return torch.cat(parts, axis)
    return parts[0]


def shared_gradients(op: Op) -> set[str]:
    """Return the gradients that sum over sequences: those of arguments shared by all sequences."""
    return {f"d{a.name}" for a in op.arguments if not {"B", "N"} & set(a.dims.split())}


def tensors_of(op: Op, inputs: Inputs) -> Results:
    """Return the tensors that the declaration names: no `cu_seqlens` and offsets."""
    names = {argument.name for argument in op.arguments}
    return {name: x for name, x in inputs.tensors.items() if name in names}
