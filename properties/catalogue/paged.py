"""Attention to keys and values in pages."""

from collections.abc import Iterator, Mapping
from random import Random

import torch
from hypothesis import strategies as st
from torch import Generator, Tensor

import reference
from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.cases.layouts import OVERLAPPING
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_NUMBERS, count, seldom_none
from properties.catalogue.op import BadCall, Mode, Option, Role

_PAGE_SIZES = st.sampled_from([1, 16, 64, 3, 5, 24])


def _queries(case: Case) -> list[int]:
    return list(case.lengths if case.packed else case.lengths * case.dims["B"])


def key_lengths(case: Case) -> list[int]:
    """Keys of each sequence: as many as queries, or more, or any number about a page's edge.

    Fewer keys than queries leave rows that see nothing. A tree has at least its own. With every
    fifth seed no sequence has fewer, and none has no key, as in a server.
    """
    random = Random(case.seed)
    size = case.dims["C"]
    lengths = []
    for queries in _queries(case):
        kinds = [queries, queries + random.randrange(2 * size + 1), queries + size]
        kinds += [0, 1, size - 1, size, size + 1, 2 * size + 1]
        length = random.choice(kinds)
        if "parents" in case.given:
            length = max(length, queries)
        lengths.append(max(length, queries, 1) if case.seed % 5 == 0 else length)
    return lengths


def _blocks(case: Case) -> list[int]:
    return [-(-length // case.dims["C"]) for length in key_lengths(case)]


def _sizes(case: Case) -> dict[str, int]:
    """Tables are up to two blocks wider than needed, and the pool has pages that nobody uses."""
    blocks = _blocks(case)
    return {"M": max([1, *blocks]) + case.seed % 3, "P": sum(blocks) + 1 + case.seed // 3 % 2}


def _table(case: Case, sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """Pages in any order. In every third case the sequences share the pages of the first one."""
    blocks = _blocks(case)
    free = torch.randperm(sizes["P"], generator=generator)
    table = torch.full((len(blocks), sizes["M"]), -1 if case.seed % 2 else 2**30)
    for n, held in enumerate(blocks):
        own, free = free[:held], free[held:]
        table[n, :held] = own
        if n and case.seed % 3 == 0:
            shared = min(held, blocks[0])
            table[n, :shared] = table[0, :shared]
    return table


def _lengths(case: Case, sizes: Mapping[str, int], generator: Generator) -> Tensor:
    return torch.tensor(key_lengths(case), dtype=torch.int64)


def _parents(case: Case, sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """A chain, which is a causal sequence, or any tree."""
    random = Random(case.seed)
    rows = []
    for length in _queries(case):
        if random.randrange(3) == 0:
            rows.append([i - 1 for i in range(length)])
        else:
            rows.append([random.randrange(-1, i) for i in range(length)])
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.int64)
    return flat.view(sizes["B"], sizes["T"])


def _read(case: Case, tensors: Mapping[str, Tensor], pool: int) -> Tensor:
    """Which rows of which pages some query sees, `[P, C]`."""
    size = case.dims["C"]
    read = torch.zeros(pool, size, dtype=torch.bool)
    window = case.options.get("window")
    table = tensors["block_table"].tolist()
    for n, (queries, keys) in enumerate(zip(_queries(case), key_lengths(case), strict=True)):
        low = 0 if window is None else max(0, keys - queries - window + 1)
        for j in range(low, keys if queries else low):
            read[table[n][j // size], j % size] = True
    return read


def _finish(case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put NaN wherever nothing is read."""
    tensors = dict(tensors)
    unread = ~_read(case, tensors, sizes["P"]).to(tensors["k_pages"].device)
    for name in ("k_pages", "v_pages", "k_scale", "v_scale"):
        x = tensors.get(name)
        if x is not None and not case.same and case.layout_of(name) not in OVERLAPPING:
            mask = unread.view(*unread.shape, *[1] * (x.dim() - 2))
            tensors[name] = x.masked_fill(mask, torch.nan)
    return tensors


def _settle(case: Case) -> Case:
    """A tree is causal."""
    if "parents" in case.given:
        return case.with_options(causal=True)
    return case


def _mistakes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Pages that do not exist, tables that are too short, lengths that cannot be."""
    table, lengths = inputs.tensors["block_table"], inputs.tensors["lengths"]
    most = int(lengths.max()) if len(lengths) else 0
    if most:
        n = int(lengths.argmax())
        needed = -(-most // case.dims["C"])
        pool = len(inputs.tensors["k_pages"])
        for page, block in ((-1, case.seed % needed), (pool, needed - 1), (pool + 2**20, 0)):
            wrong = table.clone()
            wrong[n, block] = page
            what = f"page {page} of {pool} in block {block} of {needed}"
            yield what, {"block_table": wrong}, "block_table"
        yield "a table too short", {"block_table": table[:, : needed - 1]}, "block_table"
    if len(lengths):
        wrong = lengths.clone()
        wrong[-1] = -1
        yield "a negative length", {"lengths": wrong}, "lengths"
        more = torch.cat([table, table[:1]]), torch.cat([lengths, lengths[:1]])
        yield "a sequence too many", {"block_table": more[0], "lengths": more[1]}, "block_table"
    parents = inputs.tensors.get("parents")
    if parents is not None:
        yield "a tree that is not causal", {"causal": False}, "parents"
        if parents.numel():
            for what, place, parent in (("its own", 0, 0), ("before none", -1, -2)):
                wrong = parents.clone()
                wrong.view(-1)[place] = parent
                yield f"a node whose parent is {what}", {"parents": wrong}, "parents"
            fewer = [max(queries - 1, 0) for queries in _queries(case)]
            yield (
                "fewer keys than drafted queries",
                {"lengths": lengths.new_tensor(fewer)},
                "parents",
            )


PAGED_ATTENTION = declare(
    reference.paged_attention,
    modes=(Mode("fused", bits="cut"),),
    roles={
        "k_pages": Role.KEY,
        "v_pages": Role.VALUE,
        "sink": Role.LOGIT,
        "alibi_slopes": Role.FACTOR,
        "k_scale": Role.SCALE,
        "v_scale": Role.SCALE,
        "parents": Role.PARENT,
    },
    # No kernel of it has a gradient.
    constants=("q", "k_pages", "v_pages", "sink", "alibi_slopes", "k_scale", "v_scale"),
    indices={"block_table": _table, "lengths": _lengths, "parents": _parents},
    alike=("k_pages", "v_pages"),
    nonlinear=("lse",),
    options=(
        count(
            "window",
            None,
            lambda case: seldom_none(
                *[st.integers(1, 9)] * 3, *[st.sampled_from([64, 2**31 - 1])] * 2
            ),
            switched=3,
        ),
        Option(
            "softcap",
            None,
            lambda case: st.sampled_from([None, 0.5, 2, 2.0, 30.0]),
            bad=(0.0, -1.0, float("nan"), float("inf"), *NO_NUMBERS),
            switch=lambda case: 2.0,
        ),
        count("num_splits", 1, lambda case: st.sampled_from([1, 1, 2, 3, 4, 9]), switched=3),
    ),
    dims={"C": _PAGE_SIZES},
    # Latent attention as it is served.
    widest={"K": 576, "V": 512},
    sizes=_sizes,
    computed=("M", "P"),
    work=lambda n: n["H"] * n["T"] * (n["T"] + 2 * n["C"] + 1),
    settle=_settle,
    amend=_finish,
    mistakes=_mistakes,
    float32_logits=True,
    linear_in=("v_pages",),
    recipes=("gaussian", "large_logits", "large_values", "uneven", "zeros"),
)
