"""Split the inputs or results of a case into its sequences, and join them again."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.tensors import boundaries
from properties.catalogue.op import Argument, Op, Output


def dims_of(op: Op, name: str) -> tuple[str, ...]:
    """Return the dims of an argument, an output, or the gradient "dx" of the argument x.

    A dim that may have size 1 instead is `#B`.
    """
    tensors: tuple[Argument | Output, ...] = (*op.arguments, *op.outputs)
    return next(tuple(x.dims.split()) for x in tensors if name in (x.name, f"d{x.name}"))


def spans(case: Case, dim: str) -> list[tuple[int, int]]:
    """Return the first and one-past-last token of each sequence on the axis `dim`, "T" or "S"."""
    lengths = case.key_lengths if dim == "S" and case.key_lengths is not None else case.lengths
    if case.packed:
        return list(pairwise(boundaries(lengths)))
    return [(0, lengths[0])] * case.sequences


def separate(op: Op, case: Case, tensors: Mapping[str, Tensor]) -> list[Results]:
    """Return the tensors of each sequence as a dense batch of one."""
    return [
        {
            name: _of_sequence(x, own_dims(op, case, name), op, case, n)
            for name, x in tensors.items()
        }
        for n in range(case.sequences)
    ]


def _rows(op: Op, case: Case, dim: str) -> list[tuple[int, int]]:
    """The first and one-past-last row of each sequence on an axis of tokens or `Op.rows`."""
    if dim not in op.rows:
        return spans(case, dim)
    counts = [op.rows[dim](case, length) for length in case.lengths]
    return list(pairwise(boundaries(counts))) if case.packed else [(0, counts[0])] * case.sequences


def _of_sequence(x: Tensor, dims: tuple[str, ...], op: Op, case: Case, n: int) -> Tensor:
    for axis, dim in enumerate(dims):
        if dim == "N" or (dim == "B" and not case.packed):
            x = x.narrow(axis, n, 1)
        elif dim in ("T", "S", *op.rows):
            start, stop = _rows(op, case, dim)[n]
            x = x.narrow(axis, start, stop - start)
    return x


def own_dims(op: Op, case: Case, name: str) -> tuple[str, ...]:
    """Return the dims of a tensor in a case: B for `#B`, or 1 where the case broadcasts it."""
    ones = case.broadcast.get(name, case.broadcast.get(name.removeprefix("d"), ""))
    dims = dims_of(op, name)
    return tuple("1" if d[0] == "#" and d[1:] in ones else d.removeprefix("#") for d in dims)


def join(op: Op, case: Case, pieces: Sequence[Mapping[str, Tensor]]) -> Results:
    """Undo `separate`: concatenate along the tokens if packed, else stack along the batch."""
    return {
        name: _joined([piece[name] for piece in pieces], own_dims(op, case, name), op, case.packed)
        for name in pieces[0]
    }


def _joined(parts: list[Tensor], dims: tuple[str, ...], op: Op, packed: bool) -> Tensor:
    along = ("N", "T", "S", *op.rows) if packed else ("N", "B")
    axes = [axis for axis, dim in enumerate(dims) if dim in along]
    if len(axes) > 1:
        parts = _beside_each_other(parts, axes[1] - len(dims))
    return torch.cat(parts, axes[0]) if axes else parts[0]


def _beside_each_other(parts: list[Tensor], axis: int) -> list[Tensor]:
    """Pad each part with zeros for the others along an axis, counted from the last one."""
    counts = [part.shape[axis] for part in parts]
    before = [0] * 2 * (-axis - 1)
    return [
        torch.nn.functional.pad(part, (*before, sum(counts[:n]), sum(counts[n + 1 :])))
        for n, part in enumerate(parts)
    ]


def summed_gradients(op: Op, case: Case) -> set[str]:
    """Return the gradients that sum over sequences: those of arguments that all of them read."""

    def of_all(argument: Argument) -> bool:
        # Packed sequences have parts of their own in a matrix of all tokens.
        parts = case.packed and "#" in argument.dims
        own = {"T", "S"} if parts else {"B", "N"}
        return not own & {*own_dims(op, case, argument.name)}

    return {f"d{a.name}" for a in op.arguments if of_all(a)}


def tensors_of(op: Op, inputs: Inputs) -> Results:
    """Return the tensors that the declaration names: no `cu_seqlens` and offsets."""
    names = {argument.name for argument in op.arguments}
    return {name: x for name, x in inputs.tensors.items() if name in names}
