"""Sequences packed behind `cu_seqlens` are computed as if each came alone, bit for bit.

A gradient that all sequences share is the sum of theirs. Its terms may be added in another order,
so that sum is held to the error budget.
"""

from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import compare_with_oracle, expect_identical
from properties.laws.law import Law, Subject, bits_are_comparable
from properties.sequences import join, separate, shared_gradients, tensors_of
from properties.tensors import Inputs


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    together = subject.run(op, case, inputs, gradients_of)
    apart = []
    tensors = separate(op, case, tensors_of(op, inputs))
    incoming = separate(op, case, gradients_of)
    for n in range(case.sequences):
        alone = Inputs(tensors[n], {**inputs.options, **_offset_of(case, n)})
        apart.append(subject.run(op, case, alone, incoming[n]))
    shared = shared_gradients(op) & set(together)
    names = [name for name in together if name not in shared]
    alone_joined = join(op, True, [{name: one[name] for name in names} for one in apart])
    if bits_are_comparable(op, case, subject):
        got = {name: together[name] for name in names}
        expect_identical("packing", op, case, subject, got, alone_joined, "each sequence alone")
        if not shared:
            return 0.0
    sums = {name: _sum([one[name] for one in apart]) for name in shared}
    got = {**alone_joined, **sums}
    return compare_with_oracle("packing", op, case, subject, inputs, gradients_of, got)


def _sum(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).double().sum(0).to(parts[0].dtype)


def _offset_of(case: Case, n: int) -> dict[str, int]:
    offsets = case.options.get("seqlen_offsets")
    if isinstance(offsets, (list, tuple)):
        return {"seqlen_offsets": offsets[n]}
    return {}


def adapt(op: Op, case: Case) -> Case:
    """A dense case becomes its rows, packed."""
    if case.packed:
        return case
    rows = case.dims["B"]
    own = case.key_lengths is not None and len(op.packed_by) > 1
    keys = case.key_lengths * rows if case.key_lengths is not None and own else None
    dims = {**case.dims, "B": 1}
    packed = replace(case, packed=True, dims=dims, lengths=case.lengths * rows, key_lengths=keys)
    return op.settle(packed)


LAW = Law("packing", check, adapt, uses=("cu_seqlens",))
