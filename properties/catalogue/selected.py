"""Latent attention, and attention to selected blocks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Generator, Tensor

import reference
from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.cases.layouts import OVERLAPPING
from properties.catalogue.declare import LOGITS, declare
from properties.catalogue.draws import count, head_dims
from properties.catalogue.op import BadCall, Mode, Role
from properties.catalogue.softmax import ATTENTION, unfit_packs
from properties.catalogue.work import pairs

_BLOCK_SIZE = count(
    "block_size",
    64,
    lambda case: st.one_of(
        st.integers(1, 9), st.sampled_from([1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 64, 128, 2**63 - 1])
    ),
    switched=2,
)
_TOP_K = count(
    "top_k",
    16,
    lambda case: st.one_of(st.integers(1, 5), st.integers(1, 20) | st.just(2**63 - 1)),
    switched=1,
)


def _lengths(case: Case) -> list[tuple[int, int]]:
    """Queries and keys of each sequence; of one for a whole dense batch."""
    return list(zip(case.lengths, case.key_lengths or case.lengths, strict=True))


def _block_size(case: Case) -> int:
    size: int = case.options.get("block_size", _BLOCK_SIZE.default)
    return size


def _blocks(case: Case) -> list[int]:
    """The blocks of keys of each sequence."""
    return [-(-keys // _block_size(case)) for _, keys in _lengths(case)]


def _indices(case: Case, sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """Indices that exist, a row in one of these ways: any, duplicates, nothing, only future blocks,
    the last block alone, any and the query's own. Every sixteenth case selects alike for all heads.
    """

    def drawn(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=generator)

    size, parts = _block_size(case), []
    for (queries, keys), blocks in zip(_lengths(case), _blocks(case), strict=True):
        shape = sizes["B"], queries, sizes["G"], sizes["M"]
        if blocks == 0:
            parts.append(torch.full(shape, -1))
            continue
        own = (torch.arange(keys - queries, keys) // size)[:, None, None]
        x = drawn(blocks, *shape)
        future = torch.where(own < blocks - 1, own + 1 + x % (blocks - 1 - own).clamp(min=1), -1)
        with_own = torch.where(drawn(2, *shape) == 0, x, own)
        ways = (
            (x[..., :1], 1),
            (torch.tensor(-1), 2),
            (torch.where(own < 0, x, future), 3),
            (torch.tensor(blocks - 1), 4),
            (torch.where(own < 0, x, with_own), 5),
            (torch.where(own < 0, x, with_own), 6),
        )
        way = drawn(8, *shape[:3], 1)
        y = x
        for indices, number in ways:
            y = torch.where(way == number, indices, y)
        parts.append(torch.where(drawn(8, *shape) == 0, -1, y))
    indices = torch.cat(parts, 1)
    return indices[:, :, :1].expand_as(indices) if case.seed % 16 == 0 else indices


def _without_others(case: Case, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Empty the slots of blocks that a case does not have."""
    x = tensors["indices"].clone(memory_format=torch.contiguous_format)
    bounds = [0, *torch.tensor(case.lengths).cumsum(0).tolist()]
    for blocks, (start, stop) in zip(_blocks(case), pairwise(bounds), strict=True):
        rows = x[:, start:stop]
        rows[rows >= blocks] = -1
    return {**tensors, "indices": x}


def _apart(case: Case) -> Case:
    """Pass no tensor twice where queries are packed otherwise than keys."""
    if case.packed and case.key_lengths not in (None, case.lengths):
        return replace(case, same={})
    return case


def _settle(case: Case) -> Case:
    """A token repeated in all sequences would select blocks that not all of them have."""
    case = _apart(case)
    if case.packed and case.layout_of("indices") in OVERLAPPING:
        return replace(case, layouts={**case.layouts, "indices": "contiguous"})
    return case


def _mistakes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Blocks that do not exist."""
    x = inputs.tensors["indices"]
    first = 0
    for (queries, _), blocks in zip(_lengths(case), _blocks(case), strict=True):
        if queries and x.numel():
            for index, where in ((blocks, "past the last block"), (-2, "below -1")):
                elsewhere = x.clone(memory_format=torch.contiguous_format)
                elsewhere[-1, first, -1, -1] = index
                yield f"an index {where} of a sequence", {"indices": elsewhere}, "indices"
        first += queries
    yield from unfit_packs(case, inputs)


def _mistakes_of_nsa(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Fewer slots than forced blocks."""
    forced = case.options.get("local_blocks", 2) + 1
    yield "fewer slots than forced blocks", {"top_k": forced - 1}, "top_k"
    yield from unfit_packs(case, inputs)


def _settle_nsa(case: Case) -> Case:
    """The forced blocks have slots."""
    case = _apart(case)
    options = dict(case.options)
    if "top_k" in options:
        options["top_k"] = max(options["top_k"], options.get("local_blocks", 2) + 1)
    return replace(case, options=options)


def _settle_mla(case: Case) -> Case:
    """Both parts of a key fit into one head."""
    most = {"K": 192, "D": 64}
    dims = {letter: min(size, most.get(letter, size)) for letter, size in case.dims.items()}
    return replace(case, dims=dims)


SELECTED_ATTENTION = declare(
    reference.selected_attention,
    modes=(Mode("parallel"),),
    indices={"indices": _indices},
    nonlinear=("lse",),
    options=(_BLOCK_SIZE,),
    dims={"M": st.one_of(st.integers(1, 4), st.integers(1, 12))},
    work=pairs,
    settle=_settle,
    carried_over=_without_others,
    mistakes=_mistakes,
    float32_logits=True,
    recipes=LOGITS,
)
# Latents of no dims now and then.
_RANKS = st.sampled_from([head_dims()] * 15 + [st.just(0)]).flatmap(lambda sizes: sizes)

MLA = declare(
    reference.mla,
    quiet_form=reference.mla,
    wraps=ATTENTION,
    roles={
        "q_n": Role.QUERY,
        "q_r": Role.QUERY,
        "c": Role.KEY,
        "k_r": Role.KEY,
        "w_uk": Role.PROJECTION,
        "w_uv": Role.PROJECTION,
    },
    linear_in=("w_uv",),
    nonlinear=("lse",),
    dims={"R": _RANKS, "D": head_dims(64)},
    settle=_settle_mla,
    mistakes=unfit_packs,
    recipes=tuple(name for name in LOGITS if name != "one_hot_values"),
)
NSA = declare(
    reference.nsa,
    quiet_form=reference.nsa,
    wraps=SELECTED_ATTENTION,
    roles={"g_cmp": Role.RATE, "g_slc": Role.RATE, "g_swa": Role.RATE},
    options=(
        _BLOCK_SIZE,
        _TOP_K,
        replace(_TOP_K, name="local_blocks", draw=lambda case: st.sampled_from([1, 2, 3, 2**40])),
        count(
            "window",
            512,
            lambda case: st.one_of(st.integers(1, 9), st.integers(1, 200) | st.just(2**63 - 1)),
            switched=3,
        ),
    ),
    settle=_settle_nsa,
    mistakes=_mistakes_of_nsa,
    heads_alike=False,
    recipes=LOGITS,
)
_selecting = partial(
    declare,
    wraps=SELECTED_ATTENTION,
    nonlinear=("lse",),
    mistakes=unfit_packs,
    float32_logits=True,
    recipes=LOGITS,
)
MOBA = _selecting(
    reference.moba,
    options=(_BLOCK_SIZE, _TOP_K),
)
DSA = _selecting(
    reference.dsa,
    settle=_apart,
    roles={"q_index": Role.SCORE, "k_index": Role.SCORE, "w": Role.SCORE},
    constants=("q_index", "k_index", "w"),
    options=(_TOP_K,),
)
MSA = _selecting(
    reference.msa,
    settle=_apart,
    roles={"q_index": Role.SCORE, "k_index": Role.SCORE},
    constants=("q_index", "k_index"),
    options=(_BLOCK_SIZE, _TOP_K),
)
