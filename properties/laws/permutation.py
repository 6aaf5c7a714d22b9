"""Batch rows, sequences and heads are computed alike: permuting them permutes the results."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical
from properties.laws.law import Law, Subject
from properties.sequences import dims_of, join, separate, tensors_of
from properties.tensors import Inputs, Results, boundaries


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    generator = torch.Generator().manual_seed(case.seed + 2)
    order = torch.randperm(case.sequences, generator=generator).tolist()
    heads = torch.randperm(case.dims.get("G", case.dims.get("H", 1)), generator=generator)

    def shuffled(tensors: Mapping[str, Tensor]) -> Results:
        pieces = separate(op, case, tensors)
        moved = join(op, case.packed, [pieces[n] for n in order])
        return {name: _permuted(x, dims_of(op, name), heads) for name, x in moved.items()}

    plain = subject.run(op, case, inputs, gradients_of)
    other = replace(
        case,
        lengths=tuple(case.lengths[n] for n in order) if case.packed else case.lengths,
        key_lengths=tuple(case.key_lengths[n] for n in order)
        if case.packed and case.key_lengths is not None
        else case.key_lengths,
    )
    tensors = {**inputs.tensors, **shuffled(tensors_of(op, inputs))}
    for name, each in zip(op.packed_by, (other.lengths, other.key_lengths), strict=False):
        if name in tensors:
            bounds = boundaries(each or other.lengths)
            tensors[name] = torch.tensor(bounds, device=subject.device)
    for name, x in inputs.tensors.items():
        if isinstance(case.options.get(name), (list, tuple)):
            tensors[name] = x[order]
    moved = subject.run(op, case, Inputs(tensors, inputs.options), shuffled(gradients_of))
    shared = {f"d{a.name}" for a in op.arguments if not {"B", "N"} & set(a.dims.split())}
    names = [name for name in plain if name not in shared]
    expect_identical(
        "permutation",
        op,
        other,
        subject,
        {name: moved[name] for name in names},
        shuffled({name: plain[name] for name in names}),
        f"sequences in order {order} and heads in order {heads.tolist()}",
    )
    return 0.0


def _permuted(x: Tensor, dims: tuple[str, ...], heads: Tensor) -> Tensor:
    """Query heads move with the kv head that they read."""
    for axis, dim in enumerate(dims):
        if dim in ("H", "G"):
            grouped = x.unflatten(axis, (len(heads), -1))
            x = grouped.index_select(axis, heads.to(x.device)).flatten(axis, axis + 1)
    return x


LAW = Law("permutation", check)
