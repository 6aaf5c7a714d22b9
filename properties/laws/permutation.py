"""Permuting batch rows, sequences or heads permutes the results.

A gradient that sums over sequences or heads may do so in another order, so it is held to the error
budget.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases import structures
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.sequences import join, own_dims, separate, summed_gradients, tensors_of
from properties.cases.tensors import boundaries
from properties.catalogue.op import Op
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import Law, Run, with_a_row


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs, cotangents = run.inputs(), run.cotangents()
    plain = run.call(inputs, cotangents)
    generator = torch.Generator().manual_seed(case.seed + 2)
    order = _order(case.sequences, generator)
    heads = _order(case.dims.get("G", case.dims.get("H", 1)), generator)

    moved = _with_sequences_in_order(case, order)
    tensors = {
        **inputs.tensors,
        **_permuted(op, case, tensors_of(op, inputs), order, heads),
        **_boundaries(op, moved, inputs, run.subject.device),
    }
    for name, x in inputs.tensors.items():
        if isinstance(case.options.get(name), (list, tuple)):
            tensors[name] = x[order.to(x.device)]
    permuted = _permuted(op, case, cotangents, order, heads)
    others = replace(inputs, tensors=tensors).with_options(
        **_structure(case, order, heads, run.subject.device)
    )
    results = run.on(moved).call(others, permuted)
    back = _permuted(op, moved, results, order.argsort(), heads.argsort())

    over_heads = {f"d{name}" for name, ones in case.broadcast.items() if "H" in ones}
    sums = (summed_gradients(op, case) | over_heads) & set(plain)
    names = [name for name in plain if name not in sums]
    if run.compares_bits:
        expect_identical(
            run,
            {name: back[name] for name in names},
            {name: plain[name] for name in names},
            f"sequences in order {order.tolist()} and heads in order {heads.tolist()}",
        )
        if not sums:
            return 0.0
    return compare_with_oracle(run, inputs, cotangents, back)


def _order(count: int, generator: torch.Generator) -> Tensor:
    """A random permutation, not the identity if there is another."""
    order = torch.randperm(count, generator=generator)
    return order.roll(1) if torch.equal(order, torch.arange(count)) else order


def _with_sequences_in_order(case: Case, order: Tensor) -> Case:
    if not case.packed:
        return case
    keys = case.key_lengths
    return replace(
        case,
        lengths=tuple(case.lengths[n] for n in order.tolist()),
        key_lengths=None if keys is None else tuple(keys[n] for n in order.tolist()),
    )


def _boundaries(op: Op, case: Case, inputs: Inputs, device: torch.device) -> Results:
    lengths = (case.lengths, case.key_lengths or case.lengths)
    return {
        name: torch.tensor(boundaries(each), dtype=inputs.tensors[name].dtype, device=device)
        for name, each in zip(op.packed_by, lengths, strict=False)
        if name in inputs.tensors
    }


def _structure(case: Case, order: Tensor, heads: Tensor, device: torch.device) -> dict[str, Any]:
    if "structure" not in case.options:
        return {}
    rules = structures.build(case, device, order.tolist())
    if rules is not None and "blocks" in rules and len(rules["blocks"]) > 1:
        rules["blocks"] = _with_heads_in_order(rules["blocks"], ("H",), heads)
    return {"structure": rules}


def _permuted(
    op: Op, case: Case, tensors: Mapping[str, Tensor], order: Tensor, heads: Tensor
) -> Results:
    pieces = separate(op, case, tensors)
    moved = join(op, case, [pieces[n] for n in order.tolist()])
    return {
        name: _with_heads_in_order(x, own_dims(op, case, name), heads) for name, x in moved.items()
    }


def _with_heads_in_order(x: Tensor, dims: tuple[str, ...], heads: Tensor) -> Tensor:
    """Permute heads; query heads move with their kv head."""
    for axis, dim in enumerate(dims):
        if dim in ("H", "G"):
            grouped = x.unflatten(axis, (len(heads), x.shape[axis] // max(len(heads), 1)))
            x = grouped.index_select(axis, heads.to(x.device)).flatten(axis, axis + 1)
    return x


LAW = Law("permutation", check, with_a_row)
