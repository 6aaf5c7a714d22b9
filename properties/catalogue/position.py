"""Position embeddings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import reference
from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.cases.layouts import OVERLAPPING
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_COUNTS
from properties.catalogue.op import BadCall, Mode, Option, Role


def _offsets(case: Case) -> st.SearchStrategy[int | list[int]]:
    """None, one for all sequences, or one for each; past 2^15 where the tables are narrow."""
    return _offsets_of(case.sequences, case.dims["P"] <= 4)


@lru_cache
def _offsets_of(sequences: int, narrow: bool) -> st.SearchStrategy[int | list[int]]:
    some = st.integers(0, 9)
    if narrow:
        some = st.one_of(some, st.sampled_from([2**15 - 2, 2**16 - 2, 2**16 + 1, 2**17]))
    return st.one_of(st.just(0), some, st.lists(some, min_size=sequences, max_size=sequences))


def _two_or_more(case: Case) -> int | list[int]:
    return list(range(2, 2 + case.sequences)) if case.packed else 2


# First positions. Tables of so many rows are for few pairs only.
_STARTS = (0, 0, 0, 2**15 - 3, 2**16 - 3, 2**20 - 3)


def _start(case: Case) -> int:
    far = _STARTS[case.seed // 8 % len(_STARTS)]
    return far if case.dims["P"] <= (2 if far > 2**17 else 4) else 0


def _positions(shape: tuple[int, ...], case: Case, generator: torch.Generator) -> Tensor:
    """Positions in one of several orders, which the seed chooses; the last axis is time.

    They lie in `[start, start + reach)`, and so that tables may not end earlier, one of them is the
    last of these. Positions of padding are 0.
    """
    tokens, start, reach = shape[-1], _start(case), _reach(case, shape[-1])
    # In each order, rows of the batch differ.
    first = torch.randint(9, (*shape[:-1], 1), generator=generator)
    following = (first + torch.arange(tokens)).expand(shape)
    padding = torch.zeros_like(following)
    match case.seed % 8:
        case 0 | 1:
            ids = following
        case 2:
            ids = reach - 1 - following
        case 3:
            ids = following // 3
        case 4:
            ids = first.expand(shape)
        case 5:
            # A prompt padded on its left, as in a batch of prompts of different lengths.
            padding = following < 9
            ids = (following - 9).clamp(min=0)
        case _:
            ids = torch.randint(reach, shape, generator=generator)
    ids = torch.where(padding.bool(), 0, ids + start)
    ids.view(-1)[-1:] = start + reach - 1
    return ids


def _reach(case: Case, tokens: int) -> int:
    """Rows of the tables that positions may need: often more than tokens, else a few."""
    return 3 if case.seed % 8 == 6 else tokens + 8


def _position_ids(case: Case, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    return _positions((sizes["B"], sizes["T"]), case, generator)


def _positions_on_axes(case: Case, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    return _positions((sizes["A"], sizes["B"], sizes["T"]), case, generator)


def _axes(case: Case, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """Sections of any lengths in blocks, the same interleaved, or any axis for any pair."""
    pairs, count = sizes["P"], sizes["A"]
    if case.seed % 3 == 2:
        return torch.randint(count, (pairs,), generator=generator)
    cuts = torch.randint(pairs + 1, (count - 1,), generator=generator).sort().values.tolist()
    sections = [stop - start for start, stop in pairwise([0, *cuts, pairs])]
    return reference.rotary_axes(pairs, sections, interleaved=case.seed % 3 == 1)


def _settle(case: Case) -> Case:
    """Pairs fit into the head, both tables have one dtype, and what shares elements stays.

    A law may give a batch without rows one, which wants an offset like the others, and leave out
    rows. Positions that are given have no offset.
    """
    pairs = min(case.dims["P"], case.dims["D"] // 2)
    float32 = ("cos", "sin") if "cos" in case.float32 else ()
    options = dict(case.options)
    if case.layout_of("x") in OVERLAPPING and "inplace" in options:
        options["inplace"] = False
    offsets = options.get("seqlen_offsets")
    if isinstance(offsets, (list, tuple)) and len(offsets) != case.sequences:
        missing = case.sequences - len(offsets)
        options["seqlen_offsets"] = [*offsets, *[0] * missing][: case.sequences]
    if "position_ids" in case.given and "seqlen_offsets" in options:
        options["seqlen_offsets"] = 0
    return replace(case, options=options, float32=float32).with_dims(P=pairs)


def _table_rows(case: Case) -> dict[str, int]:
    """One row more than the last position needs; a sequence without tokens needs none."""
    if "position_ids" in case.given:
        return _rows_of_positions(case)
    offsets = case.options.get("seqlen_offsets", 0)
    each = offsets if isinstance(offsets, (list, tuple)) else [offsets] * case.sequences
    lengths = case.lengths if case.packed else case.lengths * case.sequences
    return {"R": 1 + max((o + t for o, t in zip(each, lengths, strict=True) if t), default=0)}


def _rows_of_positions(case: Case) -> dict[str, int]:
    return {"R": 1 + _start(case) + _reach(case, sum(case.lengths))}


def _mistakes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Tables of the model's width instead of the head's; tables that end too early."""
    cos = inputs.tensors["cos"]
    positions = inputs.tensors.get("position_ids")
    each = torch.zeros(case.sequences, dtype=torch.int64, device=cos.device)
    if cos.shape[0] > 1 and positions is None:
        short = cos.new_zeros(cos.shape[0] - 2, cos.shape[1])
        yield "tables too short", {"cos": short, "sin": short}, "cos"
        for offset, where in ((10**6, "past"), (-1, "before")):
            yield f"an offset {where} the tables", {"seqlen_offsets": offset}, "seqlen_offsets"
            all_of_them = {"seqlen_offsets": each + offset}
            yield f"an offset each, {where} the tables", all_of_them, "seqlen_offsets"
    if positions is not None and "seqlen_offsets" in case.options:
        yield "positions beside an offset", {"seqlen_offsets": 1}, "position_ids"
        yield "positions beside an offset each", {"seqlen_offsets": each}, "position_ids"
    yield from _mistakes_on_axes(case, inputs)


def _mistakes_on_axes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    cos = inputs.tensors["cos"]
    wide = cos.new_zeros(cos.shape[0], case.dims["D"] // 2 + 1)
    axes = inputs.tensors.get("axes")
    width = {} if axes is None else {"axes": axes.new_zeros(wide.shape[1])}
    yield "tables wider than the head", {"cos": wide, "sin": wide, **width}, "head_dim"
    positions = inputs.tensors.get("position_ids")
    if positions is not None and positions.numel():
        short = cos.new_zeros(int(positions.max()), cos.shape[1])
        yield "tables too short for the positions", {"cos": short, "sin": short}, "position_ids"
        for position, where in ((cos.shape[0], "past"), (-1, "before")):
            elsewhere = positions.clone(memory_format=torch.contiguous_format)
            elsewhere.view(-1)[case.seed % positions.numel()] = position
            yield f"a position {where} the tables", {"position_ids": elsewhere}, "position_ids"
    if axes is not None and axes.numel():
        for axis, what in ((case.dims["A"], "an axis too many"), (-1, "a negative axis")):
            elsewhere = axes.clone(memory_format=torch.contiguous_format)
            elsewhere[case.seed % axes.numel()] = axis
            yield what, {"axes": elsewhere}, "axes"


_ROTATION: Any = {
    "modes": (Mode("fused"),),
    "roles": {"cos": Role.COSINE, "sin": Role.SINE},
    "constants": ("cos", "sin"),
    "computed": ("R",),
    "work": lambda n: n["T"] * n["H"] * n["D"],
    "settle": _settle,
    "of_any_size": lambda case: ("x",),
    "recipes": ("gaussian", "integers", "zeros", "uneven"),
}
_PAIRS = st.one_of(st.integers(0, 4), st.integers(0, 128))

ROTARY_EMBEDDING = declare(
    reference.rotary_embedding,
    in_float32=True,
    indices={"position_ids": _position_ids},
    options=(Option("seqlen_offsets", 0, _offsets, bad=NO_COUNTS, switch=_two_or_more),),
    dims={"P": _PAIRS},
    sizes=_table_rows,
    mistakes=_mistakes,
    **_ROTATION,
)
MULTIAXIS_ROTARY = declare(
    reference.multiaxis_rotary,
    in_float32=True,
    indices={"position_ids": _positions_on_axes, "axes": _axes},
    dims={"P": _PAIRS, "A": st.integers(1, 4)},
    sizes=_rows_of_positions,
    mistakes=_mistakes_on_axes,
    **_ROTATION,
)
