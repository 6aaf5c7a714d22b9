"""Two calls on the parts of a sequence agree with one call, gradients included.

Linear ops pass on their state, attention reads all keys so far (prefill, then decode), and a
rotation continues at an offset. Gradients flow back through the cut.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases import structures
from properties.cases.calls import noting_call, outputs_and_gradients
from properties.cases.case import Case
from properties.cases.inputs import Results
from properties.cases.sequences import dims_of, join, own_dims, separate, spans
from properties.cases.tensors import boundaries
from properties.catalogue.op import Function, Op
from properties.laws import packing
from properties.laws.expect import compare_with_oracle
from properties.laws.law import Law, Run, with_known_options, within_bounds
from properties.laws.shared_tensors import SharedTensors

_OPTIONS = {"causal": True, "output_final_state": True}


def check(run: Run) -> float:
    op, case = run.op, run.case
    # Each half is a call of its own, which must be within bounds.
    cuts = _cuts(case)
    if not all(within_bounds(op, _half(op, case, cuts, early)) for early in (True, False)):
        return 0.0
    inputs, cotangents = run.inputs(), run.cotangents()
    shared = SharedTensors(inputs)

    def in_two_calls(**given: Any) -> tuple[Tensor | None, ...]:
        return _in_two_calls(
            op, case, cuts, run.subject.function(op), given, shared.of_a_call,
            mode=case.called_mode, tile=case.tile,
        )  # fmt: skip

    # A state that passes between the calls is rounded, and so is its gradient.
    def form_in_two_calls(form: Function) -> Function:
        return lambda **given: _in_two_calls(op, case, cuts, form, given)

    with run.subject.set_up_for(case):
        got = outputs_and_gradients(op, in_two_calls, shared.leaves(inputs), cotangents)
    got, left_out = shared.rounded(got), shared.infinite
    return compare_with_oracle(run, inputs, cotangents, got, left_out, form_in_two_calls)


def _in_two_calls(
    op: Op,
    case: Case,
    cuts: list[int],
    function: Function,
    given: dict[str, Any],
    of_a_call: Callable[[Results], Results] = dict,
    **extra: Any,
) -> tuple[Tensor | None, ...]:
    """Call a function on both parts of each sequence, and join the results.

    Args:
        of_a_call: makes the tensors of one call from those of both.
        extra: arguments beside the op's own.
    """
    tensors = {a.name: given.pop(a.name) for a in op.arguments if a.name in given}
    last_first = bool(given.get("reverse"))
    results: list[list[Results]] = []
    for early in (False, True) if last_first else (True, False):
        part = _half(op, case, cuts, early)
        pieces = separate(op, case, of_a_call(tensors))
        half = [_tokens(op, case, x, cuts[n], n, early) for n, x in enumerate(pieces)]
        arguments = _arguments(op, case, part, half, given, [0] * len(cuts) if early else cuts)
        if op.continues_by == "initial_state" and results:
            arguments["initial_state"] = torch.cat([one["final_state"] for one in results[0]])
        with noting_call(op, {**arguments, **extra}):
            returned = function(**arguments, **extra)
        lengths = tuple(_length(op, piece, "T") for piece in half)
        results.append(separate(op, replace(case, lengths=lengths), op.named(returned)))
    ordered = reversed(results) if last_first else results
    whole = [
        {name: _glued(op, name, [piece[name] for piece in both], last_first) for name in both[0]}
        for both in zip(*ordered, strict=True)
    ]
    joined = join(op, case, whole)
    return tuple(joined.get(o.name) for o in op.outputs)


def _arguments(
    op: Op,
    case: Case,
    part: Case,
    half: list[Results],
    given: Mapping[str, Any],
    before: list[int],
) -> dict[str, Any]:
    """The arguments of the call on one half.

    Args:
        part: the case with the tokens of this half.
        half: the tensors of each sequence.
        given: the other arguments of a call on the whole.
        before: how many tokens of each sequence come before this half.
    """
    own = op.carried_over(part, join(op, case, half))
    options = dict(given)
    device = next(iter(own.values())).device
    if "structure" in case.options:
        options["structure"] = structures.build(part, device)
    for name, dim in zip(op.packed_by if case.packed else (), ("T", "S"), strict=False):
        lengths = [_length(op, piece, dim) for piece in half]
        bounds = torch.tensor(boundaries(lengths), dtype=given[op.packed_by[0]].dtype)
        options[name] = bounds.to(device)
    # Positions that are given as data are cut with their tokens.
    if op.continues_by == "seqlen_offsets" and "position_ids" not in own:
        options["seqlen_offsets"] = _offsets(case, before).to(device)
    return {**own, **options}


def _cuts(case: Case) -> list[int]:
    """How many tokens of each sequence come before the cut; rows of a batch share one cut.

    Mini-batches begin anew in each call: a cut lies between two of them.
    """
    generator = torch.Generator().manual_seed(case.seed + 3)
    size = case.options.get("mini_batch_size", 1)
    cuts = [size * int(torch.randint(n // size + 1, (), generator=generator)) for n in case.lengths]
    return cuts if case.packed else cuts * case.sequences


def _half(op: Op, case: Case, cuts: list[int], early: bool) -> Case:
    """The case with the tokens before its cuts, or with those after them."""
    whole = list(zip(case.lengths, case.key_lengths or case.lengths, cuts, strict=False))
    lengths = tuple(cut if early else n - cut for n, _, cut in whole)
    if not op.own_keys:
        return replace(case, lengths=lengths)
    keys = tuple(max(cut + last - n, 0) if early else last for n, last, cut in whole)
    return replace(case, lengths=lengths, key_lengths=None if keys == lengths else keys)


def _tokens(op: Op, case: Case, piece: Results, cut: int, n: int, early: bool) -> Results:
    part = {}
    (start, stop), (first, last) = spans(case, "T")[n], spans(case, "S")[n]
    for name, x in piece.items():
        for axis, dim in enumerate(own_dims(op, case, name)):
            if dim == "T":
                x = x.narrow(axis, 0, cut) if early else x.narrow(axis, cut, x.shape[axis] - cut)
            elif dim == "S" and early:
                seen = cut + (last - first) - (stop - start)
                x = x.narrow(axis, 0, max(seen, 0))
        part[name] = x
    return part


def _length(op: Op, piece: Results, dim: str) -> int:
    """The number of tokens along `dim`; without keys of its own, that of the queries."""
    for name, x in piece.items():
        if dim in dims_of(op, name):
            return x.shape[dims_of(op, name).index(dim)]
    return _length(op, piece, "T")


def _offsets(case: Case, cuts: list[int]) -> Tensor:
    offsets = case.options["seqlen_offsets"]
    each = offsets if isinstance(offsets, (list, tuple)) else [offsets] * len(cuts)
    return torch.tensor([o + c for o, c in zip(each, cuts, strict=True)])


def _glued(op: Op, name: str, parts: list[Tensor], last_first: bool) -> Tensor:
    dims = dims_of(op, name)
    if "T" in dims:
        return torch.cat(parts, dims.index("T"))
    return parts[0] if last_first else parts[-1]


def adapt(op: Op, case: Case) -> Case:
    """Pack the case, so that each sequence has its own cut, and make it causal.

    If keys cannot be packed apart from queries, use a dense batch with one cut.
    """
    rules = structures.resumable(case.options.get("structure"))
    case = op.settle(with_known_options(case, **_OPTIONS, structure=rules))
    if len(op.packed_by) < (2 if op.own_keys else 1):
        dims = {**case.dims, "B": max(1, case.dims["B"])}
        dense = replace(case, packed=False, dims=dims, lengths=(max((1, *case.lengths)),))
        return op.settle(dense)
    return packing.adapt(op, case)


_CONTINUED = ("initial_state", "output_final_state", "seqlen_offsets")
LAW = Law("splitting", check, adapt, uses=("causal", *_CONTINUED), options=_OPTIONS)
