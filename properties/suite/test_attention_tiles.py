"""Attention over many tiles: sums over tiles are float32, gates get all their pairs, and windows
hide what is past their edge."""

from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels.tiles import TABLE
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.laws import LAWS, Subject

ENTRIES = list(enumerate(TABLE["attention", "parallel"]))
WINDOW = 128
FIRST, TOKENS, HEADS = WINDOW - 1, 3 * WINDOW - 5, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "gates": {"g": torch.zeros(1, TOKENS, HEADS)},
}


def _inputs(zeros: str) -> dict[str, Tensor]:
    """Small integers in bfloat16, and cotangents of one channel for queries with a full window.

    The values of a window sum to 0, halfway to 16 · 64.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator).double()

    half = draw(1, 31, WINDOW // 2, 16)
    v = torch.cat([half, -half]).repeat(3, 1)[:TOKENS]
    do = torch.zeros(TOKENS, HEADS, 16, dtype=torch.float64)
    do[FIRST:, :, 3] = draw(1, 7, TOKENS - FIRST, HEADS)
    q, k = draw(1, 3, TOKENS, HEADS, 16), draw(-8, 8, TOKENS, 16)
    return {
        "q": 0 * q if zeros == "q" else q,
        "k": 0 * k if zeros == "k" else k,
        "v": v,
        "do": do,
    }


@pytest.mark.parametrize("zeros", ["q", "k"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tile", [i for i, entry in ENTRIES if torch.bfloat16 in entry.dtypes])
def test_sums_over_tiles_keep_their_bits(
    tile: int, options: str, zeros: str, subject: Subject
) -> None:
    """Without logits every weight is 1/128 and dS is do · v times that. Every sum is exact and is
    rounded once, as a result.
    """
    case = Case(
        op="attention", mode="parallel", dtype="bfloat16", dims={"K": 16, "V": 16}, lengths=(1,)
    )
    if tile not in subject.target.tiles(case):
        pytest.skip("no tile of this device")
    x = _inputs(zeros)
    given = {n: y.reshape(1, TOKENS, -1, 16).bfloat16().to(subject.device) for n, y in x.items()}
    do = given.pop("do")
    leaves = {n: y.requires_grad_() for n, y in given.items()}
    more = dict(OPTIONS[options])
    if "g" in more:
        leaves["g"] = more["g"] = more["g"].to(subject.device).requires_grad_()
    o, _ = kernels.attention(**{**leaves, **more}, scale=0.5, causal=True, window=WINDOW, tile=tile)
    found = torch.autograd.grad(o, [*leaves.values()], do)
    got = dict(zip((f"d{n}" for n in leaves), found, strict=True))

    ahead = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    weights = ((ahead >= 0) & (ahead < WINDOW)).double() / WINDOW
    ds = weights[:, :, None] * torch.einsum("ihc,jc->ijh", x["do"], x["v"])
    want = {
        "dq": 0.5 * torch.einsum("ijh,jc->ihc", ds, x["k"]),
        "dk": 0.5 * torch.einsum("ijh,ihc->jc", ds, x["q"])[:, None],
        "dv": torch.einsum("ij,ihc->jc", weights, x["do"])[:, None],
    }
    if "g" in more:
        # Pairs of a query from t on and a key before t.
        from_t = ds.flip(0).cumsum(0).flip(0)
        want["dg"] = (from_t.cumsum(1) - from_t).diagonal().mT
    assert not o[:, FIRST:].any()
    for name, y in want.items():
        assert torch.equal(got[name][0].cpu(), y.to(got[name].dtype)), name


def _gated(queries: tuple[int, ...], keys: tuple[int, ...], tile: int) -> Case:
    packed = len(keys) > 1
    return Case(
        op="attention",
        mode="parallel",
        dtype="float32",
        dims={"B": 1 if packed else 2, "G": 1, "R": 2, "K": 16, "V": 3},
        lengths=queries,
        key_lengths=keys,
        packed=packed,
        given=("g",),
        options={"causal": True},
        tile=tile,
        layout="sliced",
    )


@pytest.mark.parametrize("tile", [i for i, entry in ENTRIES if torch.float32 in entry.dtypes])
@pytest.mark.parametrize(
    ("queries", "keys", "more"),
    [((2,), (3,), (3, 5)), ((2,), (2,), (0, 1)), ((3,), (2,), (3, 5)), ((1, 2), (2, 1), (3, 5))],
    ids=str,
)
def test_gates_of_many_tiles_get_all_their_pairs(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    more: tuple[int, int],
    tile: int,
    subject: Subject,
) -> None:
    """This many tiles of queries and keys, and a few tokens more."""
    tiles = subject.target.tiles(_gated((1,), (1,), tile))
    if tile not in tiles:
        pytest.skip("no tile of this device")
    of_queries, of_keys = (
        tuple(n * tiles[tile] + tokens for n in lengths)
        for lengths, tokens in zip((queries, keys), more, strict=True)
    )
    case = _gated(of_queries, of_keys, tile)
    LAWS["differential"](OPS["attention"], case, subject)


@pytest.mark.parametrize("window", [127, 128, 129])
@pytest.mark.parametrize("tile", range(len(ENTRIES)))
def test_windows_on_both_sides_end_beside_tiles(tile: int, window: int, subject: Subject) -> None:
    """A tile that all queries of a program see but for one key, at either end, needs a mask."""
    case = Case(
        op="attention",
        mode="parallel",
        dtype=str(ENTRIES[tile][1].dtypes[0]).removeprefix("torch."),
        dims={"B": 1, "G": 1, "R": 1, "K": 16, "V": 16},
        lengths=(150,),
        options={"causal": False, "window": window},
        tile=tile,
    )
    if tile not in subject.target.tiles(case):
        pytest.skip("no tile of this device")
    LAWS["differential"](OPS["attention"], case, subject)
