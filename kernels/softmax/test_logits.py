"""Compare the tiles that a program reads with a list of all pairs, and functions with float64."""

from itertools import product as each_of

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.softmax.logits import keys_of, queries_of, tanh, tanh_slope


@triton.jit
def _ranges(
    out, cases, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    case = tl.program_id(0).to(tl.int64)
    first = tl.load(cases + case * 5)
    last = tl.load(cases + case * 5 + 1)
    shift = tl.load(cases + case * 5 + 2)
    length = tl.load(cases + case * 5 + 3)
    window = tl.load(cases + case * 5 + 4)
    if QUERIES:
        start, cut_1, cut_2, high, low = queries_of(
            first, last, shift, length, window, CAUSAL, WINDOW, BLOCK, ALIGNED
        )
    else:
        start, cut_1, cut_2, high, low = keys_of(
            first, last, shift, length, window, CAUSAL, WINDOW, BLOCK, ALIGNED
        )
    tl.store(out + case * 5, start)
    tl.store(out + case * 5 + 1, cut_1)
    tl.store(out + case * 5 + 2, cut_2)
    tl.store(out + case * 5 + 3, high)
    tl.store(out + case * 5 + 4, low)


# Tiles are aligned where there are gates, which are causal: no query of theirs precedes all keys.
@pytest.mark.parametrize(("causal", "aligned"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("queries", [False, True], ids=["keys", "queries"])
def test_a_program_reads_what_it_sees_and_masks_where_it_must(
    queries: bool, causal: bool, windowed: bool, aligned: bool, device: torch.device
) -> None:
    block = 2
    held = [(first, first + n - 1) for first, n in each_of((0, 4), (0, 1, 3))]
    windows = (1, 2, 6) if windowed else (1,)
    drawn = each_of(held, range(-5, 6), (0, 1, 4, 9), windows)
    cases = [(*ends, shift, length, window) for ends, shift, length, window in drawn]
    out = torch.empty(len(cases), 5, dtype=torch.int32, device=device)
    given = torch.tensor(cases, dtype=torch.int32, device=device)
    _ranges[(len(cases),)](out, given, block, queries, causal, windowed, aligned)
    for case, found in zip(cases, out.tolist(), strict=True):
        first, last, shift, length, window = case
        # A row for each that the program holds, a column for each that it may read.
        q, k = torch.arange(first, last + 1)[:, None], torch.arange(length)
        if queries:
            q, k = k, q
        sees = _sees(q + shift, k, window if windowed else None, causal=causal)
        _expect_tiles(found, sees, shift if queries and aligned else 0, block, aligned=aligned)


def _sees(position: Tensor, key: Tensor, window: int | None, *, causal: bool) -> Tensor:
    seen = key <= position if causal else torch.ones_like(key <= position)
    return seen if window is None else seen & ((position - key).abs() < window)


def _expect_tiles(found: list[int], sees: Tensor, shift: int, block: int, *, aligned: bool) -> None:
    start, cut_1, cut_2, high, low = found
    some = sees.any(0).nonzero().flatten().tolist()
    assert list(range(low, high)) == some
    if not some:
        return
    assert start == ((low + shift) // block * block - shift if aligned else low)
    tiles = range(start, high, block)
    whole = [i for i in tiles if i >= low and i + block <= high and sees[:, i : i + block].all()]
    assert list(range(cut_1, cut_2, block)) == whole
    assert start <= cut_1 <= cut_2 <= high
    if whole:
        assert cut_2 == whole[-1] + block


@triton.jit
def _apply(out, x, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    cells = tl.arange(0, BLOCK)
    y = tanh_slope(tl.load(x + cells)) if SLOPE else tanh(tl.load(x + cells))
    tl.store(out + cells, y)


@pytest.mark.parametrize("slope", [False, True], ids=["tanh", "slope"])
def test_a_hyperbolic_tangent_keeps_its_digits(slope: bool, device: torch.device) -> None:
    half = torch.logspace(-20, 6.5, 2048, base=2, dtype=torch.float64)
    x = torch.cat([half, -half]).float().to(device)
    y = torch.empty_like(x)
    _apply[(1,)](y, x, slope, len(x))
    exact = x.double()
    want = 1 / exact.cosh().square() if slope else exact.tanh()
    error = (y.double() - want).abs() / want.abs()
    # Two ulp. A slope falls as exp(-2|x|), of whose argument both the factor and it are rounded.
    bound, least = 4 + (4 * exact.abs() + 2 if slope else 0 * exact), 2.0**-126
    if device.type == "cuda":
        # There exp2 is off by up to 2^-22, which counts twice in tanh(1/4) and less further on, and
        # a division by two ulp (PTX ISA, ex2.approx and div.full); what is less than normal is 0.
        bound += 8 if slope else torch.where(exact.abs() < 0.25, 0, 12)
        least = 4 * least
    assert (error / bound)[want.abs() >= least].max() <= 2.0**-24
