"""The bits of a sequence do not depend on how a server happens to batch, store or cut it.

The levels, of which `determinism` and `packing` test the first: `Mode.bits` names the highest at
which a mode keeps its bits, and beyond it the error budget judges.

    batch    each sequence alone or packed, beside any others
    pages    pages of another size and order, not shared, in a wider table, beside pages of NaN
    cut      a prompt in two chunks, cut anywhere; a decoding step is the last row of a prompt
    splits   the keys in another number of parts
"""

from dataclasses import replace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.sequences import join, separate
from properties.catalogue.op import LEVELS, Op
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import Law, Run, with_a_row, with_known_options, with_own_elements

_OPTIONS = {"causal": True}


def check(run: Run) -> float:
    inputs = run.inputs()
    return max(change(run, inputs) for change in (_in_other_pages, _cut, _in_other_splits))


def _judge(run: Run, inputs: Inputs, got: Results, want: Results, level: str) -> float:
    """Compare bits if the mode promises them at this level, else with the oracle.

    Args:
        inputs: of the call that gave `got`.
    """
    promised = LEVELS.index(level) <= LEVELS.index(run.op.mode(run.case.mode).bits)
    if promised and run.compares_bits:
        expect_identical(run, got, want, f"another call at level {level!r}")
        return 0.0
    return compare_with_oracle(run, inputs, {}, got)


def _in_other_pages(run: Run, inputs: Inputs) -> float:
    want = run.call(inputs)
    others = _repaged(run, inputs)
    worst = _judge(run, others, run.call(others), want, "pages")
    _beside_pages_of_nan(run, others, want)
    return worst


def _beside_pages_of_nan(run: Run, inputs: Inputs, want: Results) -> None:
    """Fill the pages of one sequence with NaN: the results of the others stay.

    Args:
        inputs: in which no two sequences share a page.
    """
    held = [n for n, length in enumerate(inputs.tensors["lengths"].tolist()) if length]
    if run.case.sequences < 2 or not held:
        return
    spoiled = held[run.case.seed % len(held)]
    table = inputs.tensors["block_table"][spoiled]
    pages = table[table >= 0].long()
    floats = {name: x for name, x in _pools(inputs).items() if x.is_floating_point()}
    got = run.call(inputs.with_tensors({n: _with_nan(x, pages) for n, x in floats.items()}))

    def others(results: Results) -> Results:
        each = separate(run.op, run.case, results)
        return join(run.op, run.case, each[:spoiled] + each[spoiled + 1 :])

    against = f"the call in which the pages of sequence {spoiled} are not NaN"
    expect_identical(run, others(got), others(want), against)


def _pools(inputs: Inputs) -> Results:
    names = ("k_pages", "v_pages", "k_scale", "v_scale")
    return {name: inputs.tensors[name] for name in names if name in inputs.tensors}


def _with_nan(x: Tensor, pages: Tensor) -> Tensor:
    spoiled = x.float()
    spoiled[pages] = torch.nan
    return spoiled.to(x.dtype)


def _repaged(run: Run, inputs: Inputs) -> Inputs:
    """Put the keys and values into pages of another order, and of another size if the
    implementation takes one, that no sequences share.
    """
    case = run.case
    generator = torch.Generator().manual_seed(case.seed + 7)
    table, lengths = inputs.tensors["block_table"].long(), inputs.tensors["lengths"].tolist()
    size = inputs.tensors["k_pages"].shape[1]
    others = [s for s in (16, 1, 7, 64) if s != size and _takes_pages(run.op, case, s)]
    other = others[case.seed % len(others)] if others else size
    needed = [-(-length // other) for length in lengths]
    pages = torch.randperm(sum(needed) + 2, generator=generator).to(table.device)
    wider = table.new_full((len(lengths), max([0, *needed]) + 3), -1)
    for n, count in enumerate(needed):
        start = sum(needed[:n])
        wider[n, :count] = pages[start : start + count]

    def moved(x: Tensor) -> Tensor:
        # Through float32, since not every operation exists for 8 bits.
        y = torch.full((len(pages), other, *x.shape[2:]), torch.nan, device=x.device)
        if not x.is_floating_point():
            y.fill_(127)
        for n, length in enumerate(lengths):
            j = torch.arange(length, device=x.device)
            y[wider[n, j // other], j % other] = x.float()[table[n, j // size], j % size]
        return y.to(x.dtype)

    tensors = {name: moved(x) for name, x in _pools(inputs).items()}
    tensors["block_table"] = wider.to(inputs.tensors["block_table"].dtype)
    return inputs.with_tensors(tensors)


def _takes_pages(op: Op, case: Case, size: int) -> bool:
    return op.settle(case.with_dims(C=size)).dims["C"] == size


def _takes_queries(op: Op, case: Case, count: int) -> bool:
    return op.settle(replace(case, lengths=(count,))).lengths == (count,)


def _cut(run: Run, inputs: Inputs) -> float:
    case = run.case
    tokens = case.lengths[0]
    want = run.call(inputs)
    generator = torch.Generator().manual_seed(case.seed + 9)
    cuts = {int(torch.randint(tokens + 1, (), generator=generator)), tokens - 1}
    worst = 0.0
    for cut in cuts:
        if _takes_queries(run.op, case, tokens - cut):
            late = inputs.with_tensors({"q": inputs.tensors["q"][:, cut:]})
            got = run.call(late)
            worst = max(worst, _judge(run, late, got, _tokens(want, cut, tokens), "cut"))
        if inputs.options.get("num_splits", 1) == 1 and _takes_queries(run.op, case, cut):
            early = _first_tokens(inputs, cut, tokens)
            if early is not None:
                got = run.call(early)
                first = _tokens(want, 0, cut)
                worst = max(worst, _judge(run, early, got, first, "cut"))
    return worst


def _tokens(results: Results, start: int, stop: int) -> Results:
    return {
        name: y[..., start:stop] if name == "lse" else y[:, start:stop]
        for name, y in results.items()
    }


def _first_tokens(inputs: Inputs, cut: int, tokens: int) -> Inputs | None:
    """The first queries, with the keys until then; None if some sequence has fewer keys."""
    lengths, gone = inputs.tensors["lengths"], tokens - cut
    if len(lengths) and int(lengths.min()) < gone:
        return None
    return inputs.with_tensors({"q": inputs.tensors["q"][:, :cut], "lengths": lengths - gone})


def _in_other_splits(run: Run, inputs: Inputs) -> float:
    splits = inputs.options.get("num_splits")
    if splits is None:
        return 0.0
    want = run.call(inputs)
    other = inputs.with_options(num_splits=2 + (splits + run.case.seed) % 7)
    return _judge(run, other, run.call(other), want, "splits")


def adapt(op: Op, case: Case) -> Case:
    """A dense causal case with a row and a query, whose pairs are hidden by no tree."""
    dense = replace(
        with_known_options(case.without("parents"), **_OPTIONS),
        packed=False,
        lengths=(max((1, *case.lengths)),),
        key_lengths=None if case.key_lengths is None else (max(case.key_lengths),),
        same={},
        earlier=None,
        frozen=(),
        context="no_grad",
    )
    return op.settle(with_a_row(op, with_own_elements(dense)))


LAW = Law("batch_invariance", check, adapt, uses=("causal",), options=_OPTIONS)
