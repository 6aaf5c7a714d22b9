"""Attention over the parts of a partition of the keys, merged, is the attention over all.

Ring, cascade and split attention rest on this. The oracle merges the parts of `attention`, since a
target need not have an op for it. `merge_attention` itself is commutative, has a neutral element,
both bit for bit, and is associative.
"""

import math
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from properties.cases.calls import noting_call, outputs_and_gradients
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.catalogue.op import Op
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import Law, Run, with_known_options, within_bounds
from properties.laws.shared_tensors import SharedTensors
from reference.softmax import merge

# They add to a logit by the place of its key among all keys, not in its part.
_BY_PLACE = ("alibi_slopes", "g")
_OPTIONS = {"window": None, "structure": None, "return_lse": True}


def check(run: Run) -> float:
    inputs, cotangents = run.inputs(), run.cotangents()
    if run.op.own_keys:
        return _in_parts(run, inputs, cotangents)
    _expect_commutativity(run, inputs, cotangents)
    _expect_a_neutral_element(run, inputs)
    return _in_halves(run, inputs, cotangents)


def _in_parts(run: Run, inputs: Inputs, cotangents: Results) -> float:
    """Compare the attention over parts of the keys, merged, with that over all."""
    op = run.op
    if not _parts_are_within_bounds(op, run.case):
        return 0.0
    dtype, shared = inputs.given()["q"].dtype, SharedTensors(inputs)

    def in_parts(**given: Any) -> tuple[Tensor, Tensor]:
        o, lse = reduce(lambda one, other: merge.weighted(*one, *other), _parts(run, shared, given))
        return o.to(dtype), lse.float()

    with run.subject.set_up_for(run.case):
        got = outputs_and_gradients(op, in_parts, shared.leaves(inputs), cotangents)
    got, left_out = shared.rounded(got), shared.infinite
    return compare_with_oracle(run, inputs, cotangents, got, left_out)


def _parts(run: Run, shared: SharedTensors, given: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The attention of all queries over each part of the keys."""
    case, over = run.case, partial(_attention, run, shared)
    queries, keys, device = given["q"].shape[1], given["k"].shape[1], given["k"].device
    everything = slice(0, queries)
    # The sink is one more part: it is in one call alone.
    rest = {name: x for name, x in given.items() if name != "sink"}
    if not given["causal"]:
        first, *others = _subsets(case, keys, device)
        return [over(given, everything, first)] + [over(rest, everything, one) for one in others]
    cut = int(torch.randint(keys + 1, (), generator=_generator(case)))
    # Queries before the cut see the first keys causally, later ones see them all.
    early = min(max(cut - keys + queries, 0), queries)
    place = torch.arange(keys, device=device)
    before = [
        over(rest, slice(0, early), place[:cut]),
        over({**rest, "causal": False}, slice(early, queries), place[:cut]),
    ]
    outputs, lses = zip(*before, strict=True)
    last = over(given, everything, place[cut:])
    return [last, (torch.cat(outputs, 1), torch.cat(lses, 2))]


def _attention(
    run: Run, shared: SharedTensors, given: dict[str, Any], queries: slice, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The attention of some queries over some keys, in float64."""
    function = run.subject.function(run.op)
    given = shared.of_a_call(given)
    given |= {"q": given["q"][:, queries], "k": given["k"][:, keys], "v": given["v"][:, keys]}
    for name in {"bias", "mask"} & given.keys():
        # A size of 1 stands for all.
        x = given[name] if given[name].shape[2] == 1 else given[name][:, :, queries]
        given[name] = x if x.shape[3] == 1 else x[..., keys]
    with noting_call(run.op, given):
        returned = function(**given, mode=run.case.called_mode, tile=run.case.tile)
    results = run.op.named(returned)
    return results["o"].double(), results["lse"].double()


def _parts_are_within_bounds(op: Op, case: Case) -> bool:
    """Whether an implementation takes fewer keys, and queries that see all of them."""
    keys = 0 if case.key_lengths is None else max(case.key_lengths)
    fewer = replace(case, key_lengths=(max(0, keys - 1),))
    later = replace(
        with_known_options(fewer, causal=False), lengths=(max(1, max(case.lengths) - 1),)
    )
    return within_bounds(op, fewer) and within_bounds(op, later)


def _subsets(case: Case, keys: int, device: torch.device) -> list[Tensor]:
    """The places of the keys of two or three parts, any of which may be empty."""
    count = 2 + case.seed % 2
    part = torch.randint(count, (keys,), generator=_generator(case)).to(device)
    return [(part == n).nonzero()[:, 0] for n in range(count)]


def _generator(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(case.seed + 5)


def _expect_commutativity(run: Run, inputs: Inputs, cotangents: Results) -> None:
    there = run.call(inputs, cotangents)
    given = inputs.given()
    swapped = {f"{x}_{a}": given[f"{x}_{b}"] for x in ("o", "lse") for a, b in ("ab", "ba")}
    trained = tuple(_other(name) for name in inputs.trained)
    back = run.call(Inputs(swapped, inputs.options, trained=trained), cotangents)
    back = {name if name in ("o", "lse") else _other(name): x for name, x in back.items()}
    expect_identical(run, back, there, "the parts in the other order")


def _other(name: str) -> str:
    """Rename an argument of one part, or its gradient, to that of the other part."""
    return name[:-1] + {"a": "b", "b": "a"}[name[-1]]


def _expect_a_neutral_element(run: Run, inputs: Inputs) -> None:
    given = inputs.given()
    o, lse = given["o_a"], given["lse_a"]
    empty = {
        "o_b": torch.full_like(given["o_b"], math.nan),
        "lse_b": torch.full_like(given["lse_b"], -math.inf),
    }
    tensors = {"o_a": o, "lse_a": lse, **empty}
    got = run.call(Inputs(tensors, inputs.options))
    nothing = (lse == -math.inf).transpose(1, 2)[..., None]
    want = {"o": o.masked_fill(nothing, 0.0), "lse": lse.float()}
    expect_identical(run, got, want, "the part that is not empty")


def _in_halves(run: Run, inputs: Inputs, cotangents: Results) -> float:
    """Merge the second part in two halves, which have its output and half its denominator: if
    merging is associative, the result is that of merging it whole.
    """
    op, case = run.op, run.case
    function = run.subject.function(op)
    half = 1.0 if inputs.options.get("base2") else math.log(2)

    def in_halves(**given: Any) -> tuple[Tensor, Tensor]:
        o_b, lse_b = given.pop("o_b"), given.pop("lse_b")
        given |= {"mode": case.called_mode, "tile": case.tile}
        for _ in range(2):
            results = op.named(function(**given, o_b=o_b, lse_b=lse_b.float() - half))
            given |= {"o_a": results["o"], "lse_a": results["lse"]}
        return results["o"], results["lse"]

    with run.subject.set_up_for(case):
        got = outputs_and_gradients(op, in_halves, inputs, cotangents)
    return compare_with_oracle(run, inputs, cotangents, got)


def adapt(op: Op, case: Case) -> Case:
    """Leave out options that a part cannot state: places of keys, and distances to keys that are
    not in it.
    """
    if not op.own_keys:
        return replace(case, same={})
    keys = case.key_lengths or case.lengths
    case = with_known_options(case.without(*_BY_PLACE), **_OPTIONS)
    return op.settle(
        replace(
            case,
            packed=False,
            lengths=(max((1, *case.lengths)),),
            key_lengths=(max((1, *keys)),),
            earlier=None,
        ).with_dims(B=max(1, case.dims["B"]))
    )


LAW = Law("merging", check, adapt, uses=("return_lse",), options=_OPTIONS)
