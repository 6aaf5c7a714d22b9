"""Position embeddings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.cases.layouts import SHARING
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_COUNTS
from properties.catalogue.op import Mode, Option, Role

if TYPE_CHECKING:
    from properties.cases.tensors import Inputs


def _offsets(case: Case) -> st.SearchStrategy[int | list[int]]:
    """None, one for all sequences, or one for each; past 2^16 where the tables are narrow."""
    some = st.integers(0, 9)
    if case.dims["P"] <= 4:
        some = st.one_of(some, some, st.sampled_from([2**16 - 2, 2**16 + 1, 2**17]))
    return st.one_of(
        st.just(0), some, st.lists(some, min_size=case.sequences, max_size=case.sequences)
    )


def _two_or_more(case: Case) -> int | list[int]:
    return list(range(2, 2 + case.sequences)) if case.packed else 2


def _settle(case: Case) -> Case:
    """Pairs fit into the head, both tables have one dtype, and what shares elements stays.

    A law may give a batch without rows one, which wants an offset like the others.
    """
    pairs = min(case.dims["P"], case.dims["D"] // 2)
    float32 = ("cos", "sin") if "cos" in case.float32 else ()
    options = dict(case.options)
    if case.layout_of("x") in SHARING and "inplace" in options:
        options["inplace"] = False
    offsets = options.get("seqlen_offsets")
    if isinstance(offsets, (list, tuple)) and len(offsets) < case.sequences:
        options["seqlen_offsets"] = [*offsets, *[0] * (case.sequences - len(offsets))]
    return replace(case, dims={**case.dims, "P": pairs}, options=options, float32=float32)


def _table_rows(case: Case) -> dict[str, int]:
    """One row more than the last position needs; a sequence without tokens needs none."""
    offsets = case.options.get("seqlen_offsets", 0)
    each = offsets if isinstance(offsets, (list, tuple)) else [offsets] * case.sequences
    lengths = case.lengths if case.packed else case.lengths * case.sequences
    return {"R": 1 + max((o + t for o, t in zip(each, lengths, strict=True) if t), default=0)}


def _mistakes(case: Case, inputs: "Inputs") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Tables of the model's width instead of the head's; tables that end too early."""
    cos = inputs.tensors["cos"]
    wide = cos.new_zeros(cos.shape[0], case.dims["D"] // 2 + 1)
    yield "tables wider than the head", {"cos": wide, "sin": wide}, "head_dim"
    if cos.shape[0] > 1:
        short = cos.new_zeros(cos.shape[0] - 2, cos.shape[1])
        yield "tables too short", {"cos": short, "sin": short}, "cos"
        each = torch.zeros(case.sequences, dtype=torch.int64, device=cos.device)
        for offset, where in ((10**6, "past"), (-1, "before")):
            yield f"an offset {where} the tables", {"seqlen_offsets": offset}, "seqlen_offsets"
            all_of_them = {"seqlen_offsets": each + offset}
            yield f"an offset each, {where} the tables", all_of_them, "seqlen_offsets"


ROTARY_EMBEDDING = declare(
    reference.rotary_embedding,
    modes=(Mode("fused"),),
    roles={"cos": Role.COSINE, "sin": Role.SINE},
    constants=("cos", "sin"),
    options=(Option("seqlen_offsets", 0, _offsets, bad=NO_COUNTS, switch=_two_or_more),),
    dims={"P": st.one_of(st.integers(0, 4), st.integers(0, 128))},
    sizes=_table_rows,
    computed=("R",),
    work=lambda n: n["T"] * n["H"] * n["D"],
    settle=_settle,
    mistakes=_mistakes,
    recipes=("gaussian", "integers", "zeros", "uneven"),
)
