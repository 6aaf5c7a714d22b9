"""Packed sequences give the bits of each sequence alone, if a tile is asked for.

Without one, an op may take another tile for many sequences; then its results are held to the error
budget.

A gradient that sums over sequences may do so in another order, so it is held to the error budget. A
sequence of NaN must change no bit of its neighbours, which catches reads past a sequence even if
they are multiplied by 0.
"""

from dataclasses import replace
from typing import Any

import torch

from properties.cases import structures
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import relaid
from properties.cases.sequences import dims_of, join, separate, spans, summed_gradients, tensors_of
from properties.cases.tensors import token_axis
from properties.catalogue.kinds import has
from properties.catalogue.op import Op, Role
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import Law, Run, with_own_elements
from properties.laws.shared_tensors import summed

# The most tokens of a pack that is made of more than two rows.
_TOKENS = 256


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs, cotangents = run.inputs(), run.cotangents()
    together = run.call(inputs, cotangents)
    apart = []
    tensors = separate(op, case, tensors_of(op, inputs))
    of_each = separate(op, case, cotangents)
    for n in range(case.sequences):
        options = {**inputs.options, **_offset_of(case, n), **_structure_of(run, n)}
        alone = replace(inputs, tensors=tensors[n], options=options)
        apart.append(run.call(alone, of_each[n]))
    sums = summed_gradients(op, case) & set(together)
    names = [name for name in together if name not in sums]
    _expect_no_neighbour(run, inputs, cotangents, together, names)
    alone_joined = join(op, case, [{name: one[name] for name in names} for one in apart])
    # A projection is a matrix product of PyTorch, whose bits depend on the number of rows.
    by_count = has(op, Role.PROJECTION) or run.subject.target.chooses_by_count(op, case)
    if run.compares_bits and not by_count:
        got = {name: together[name] for name in names}
        expect_identical(run, got, alone_joined, "each sequence alone")
        if not sums:
            return 0.0
    totals = {name: summed(one[name] for one in apart) for name in sums}
    got = {**alone_joined, **{name: total for name, (total, _) in totals.items()}}
    left_out = {name: infinite for name, (_, infinite) in totals.items()}
    return compare_with_oracle(run, inputs, cotangents, got, left_out)


def _expect_no_neighbour(
    run: Run,
    inputs: Inputs,
    cotangents: Results,
    together: Results,
    names: list[str],
) -> None:
    """Fill the tokens of one sequence with NaN and expect the same results for the others.

    States stay finite: with an expanded layout all sequences share the first one's.
    """
    op, case = run.op, run.case
    lengths = zip(case.lengths, case.key_lengths or case.lengths, strict=True)
    filled = [n for n, counts in enumerate(lengths) if any(counts)]
    if not filled or case.sequences == 1:
        return
    garbage = filled[case.seed % len(filled)]
    tensors = {}
    for name, x in tensors_of(op, inputs).items():
        dims = dims_of(op, name)
        axis = token_axis(dims)
        if axis is not None and x.is_floating_point():
            x = x.clone(memory_format=torch.contiguous_format)
            start, stop = spans(case, dims[axis])[garbage]
            x.narrow(axis, start, stop - start).fill_(float("nan"))
            tensors[name] = relaid(x, case.layout_of(name))
    beside = run.call(inputs.with_tensors(tensors), cotangents)

    def others(results: Results) -> Results:
        pieces = separate(op, case, {name: results[name] for name in names})
        return join(op, case, [piece for n, piece in enumerate(pieces) if n != garbage])

    against = f"the same call where sequence {garbage} is not NaN"
    expect_identical(run, others(beside), others(together), against)


def _offset_of(case: Case, n: int) -> dict[str, int]:
    offsets = case.options.get("seqlen_offsets")
    if isinstance(offsets, (list, tuple)):
        return {"seqlen_offsets": offsets[n]}
    return {}


def _structure_of(run: Run, n: int) -> dict[str, Any]:
    if "structure" not in run.case.options:
        return {}
    return {"structure": structures.build(run.case, run.subject.device, [n])}


def adapt(op: Op, case: Case) -> Case:
    """Pack the rows of a dense case; add a row if it has none, and leave out those of a long pack,
    which an oracle walks one after the other.
    """
    case = with_own_elements(case)
    if case.packed:
        return case
    rows = min(max(case.dims["B"], 1), max(2, _TOKENS // max(1, *case.lengths)))
    own = case.key_lengths is not None and len(op.packed_by) > 1
    keys = case.key_lengths * rows if case.key_lengths is not None and own else None
    dims = {**case.dims, "B": 1}
    packed = replace(case, packed=True, dims=dims, lengths=case.lengths * rows, key_lengths=keys)
    return op.settle(packed)


LAW = Law("packing", check, adapt, uses=("cu_seqlens",))
