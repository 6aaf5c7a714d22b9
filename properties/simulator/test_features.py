"""A small kernel for every feature of the simulator, compared with torch or with values by hand."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
import triton.testing
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import properties.simulator as simulator
from properties.simulator import runtime

N = 64
RANGE = torch.arange(N, dtype=torch.int32)


@pytest.fixture(autouse=True, params=["slabs", "slabs without the idle", "one by one"])
def simulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs with the programs of a launch together, and one after the other."""
    torch.manual_seed(0)
    if request.param == "slabs without the idle":
        monkeypatch.setattr(runtime, "MANY_IDLE", 0)
    with simulator.simulating(slab=1 if request.param == "one by one" else 0):
        yield


def launch(kernel: Any, out: torch.Tensor, *args: Any, grid: int = 1, **constants: Any) -> Any:
    kernel[(grid,)](out, *args, **constants)
    return out


# Control flow


@triton.jit
def loop_with_own_bound(out, N: tl.constexpr):
    pid = tl.program_id(0)
    total = tl.zeros([N], tl.int32)
    steps = 0
    for i in range(pid % 3, pid):
        total += i * tl.arange(0, N)
        steps += 1
    tl.store(out + pid * N + tl.arange(0, N), total + steps)


def test_programs_leave_a_for_loop_at_their_own_bound() -> None:
    out = launch(loop_with_own_bound, torch.empty(7, N, dtype=torch.int32), N=N, grid=7)
    for pid in range(7):
        turns = range(pid % 3, pid)
        assert torch.equal(out[pid], sum(turns) * RANGE + len(turns))


@triton.jit
def collatz(out, start):
    pid = tl.program_id(0)
    x = tl.load(start + pid)
    steps = 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(out + pid, steps)


def test_programs_leave_a_while_loop_when_they_are_done() -> None:
    start = torch.tensor([1, 2, 3, 7, 27, 6], dtype=torch.int32)
    out = launch(collatz, torch.empty(6, dtype=torch.int32), start, grid=6)
    assert out.tolist() == [0, 1, 7, 16, 111, 8]


@triton.jit
def early_return(out, limit):
    pid = tl.program_id(0)
    if pid >= limit:
        return
    tl.store(out + pid, pid)
    if pid % 2 == 1:
        return
    tl.store(out + pid, pid + 100)


def test_a_program_that_returns_early_does_nothing_more() -> None:
    out = launch(early_return, torch.full((6,), -1, dtype=torch.int32), 4, grid=6)
    assert out.tolist() == [100, 1, 102, 3, -1, -1]


@triton.jit
def swaps(out, turns):
    a = tl.program_id(0)
    b = a + 10
    for _ in range(turns):
        a, b = b, a
    tl.store(out + 2 * tl.program_id(0), a)
    tl.store(out + 2 * tl.program_id(0) + 1, b)


@pytest.mark.parametrize("turns", [0, 1, 4, 5])
def test_values_carried_by_a_loop_are_handed_over_at_once(turns: int) -> None:
    out = launch(swaps, torch.empty(2, 2, dtype=torch.int32), turns, grid=2)
    expected = [[0, 10], [1, 11]]
    assert out.tolist() == ([row[::-1] for row in expected] if turns % 2 else expected)


@triton.jit
def conditions(out, x, flag):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    if flag > 0:
        value += 1.0
    if pid % 2 == 0:
        scaled = value * 2
        if value > 3:
            scaled = value * 3
            tl.store(out + 8 + pid, 1.0)
    else:
        scaled = value
    tl.store(out + pid, scaled)


@pytest.mark.parametrize("flag", [0, 1])
def test_if_takes_its_branch_program_by_program(flag: int) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 2.5, 8.0])
    out = launch(conditions, torch.zeros(16), x, flag, grid=8)
    value = x + flag
    even = torch.arange(8) % 2 == 0
    assert torch.equal(out[:8], torch.where(even, value * torch.where(value > 3, 3, 2), value))
    assert torch.equal(out[8:], (even & (value > 3)).float())


@triton.jit
def an_index_widened_in_a_branch(out, x):
    pid = tl.program_id(0)
    row = pid * 2
    tl.store(out + row, tl.load(x + row))
    if pid % 2 == 0:
        tl.store(out + row.to(tl.int64) + 1, tl.load(x + row.to(tl.int64) + 1))


def test_an_index_before_a_branch_may_be_widened_in_it() -> None:
    x = torch.arange(1.0, 13.0)
    out = launch(an_index_widened_in_a_branch, torch.zeros(12), x, grid=6)
    assert out.tolist() == [1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11, 0]


@triton.jit(noinline=True)
def sign_of(x):
    if x > 0:
        return 1
    if x == 0:
        return 0
    return -1


@triton.jit(noinline=True)
def put(out, index, value):
    tl.store(out + index, value)


@triton.jit
def calls(out, x):
    pid = tl.program_id(0)
    value = sign_of(tl.load(x + pid))
    if value >= 0:
        put(out, pid, value)


def test_a_call_that_is_not_inlined_returns_and_stores() -> None:
    x = torch.tensor([5, 0, -3, 9], dtype=torch.int32)
    out = launch(calls, torch.full((4,), 7, dtype=torch.int32), x, grid=4)
    assert out.tolist() == [1, 0, 7, 1]


@triton.jit
def three_axes(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + (z * ny + y) * nx + x, x + 10 * y + 100 * z)


def test_program_ids_run_over_three_axes() -> None:
    out = torch.empty(2, 3, 4, dtype=torch.int32)
    three_axes[(4, 3, 2)](out)
    z, y, x = torch.meshgrid(*(torch.arange(n) for n in out.shape), indexing="ij")
    assert torch.equal(out, (x + 10 * y + 100 * z).int())


@pytest.mark.parametrize("order", ["reverse", "shuffled"])
def test_the_order_of_programs_does_not_matter_to_an_honest_kernel(order: str) -> None:
    expected = launch(loop_with_own_bound, torch.empty(7, N, dtype=torch.int32), N=N, grid=7)
    with simulator.simulating(order=order, slab=3):
        out = launch(loop_with_own_bound, torch.empty(7, N, dtype=torch.int32), N=N, grid=7)
    assert torch.equal(out, expected)


@triton.jit(noinline=True)
def shadowed(np, _combine, x):
    cst, left, range_64 = x + 1, np * 2, _combine
    return cst + left * range_64


@triton.jit
def borrowed_names(out, slab, pred, N: tl.constexpr):
    split = tl.arange(0, N)
    dot, merge, branch = split + 1, split * 2, split // 3
    left, right = tl.split(tl.reshape(dot, (N // 2, 2)))
    in_bb1 = tl.sum(left * 0 + right, 0)
    cst, c1_i32, L0, lambda_ = merge - 1, 7, branch, 3
    reshape = tl.reshape(tl.trans(tl.reshape(cst, (2, N // 2))), (N,))
    for counted in range(2):
        if tl.load(slab) > pred:
            choose = reshape + counted
            reshape = choose + shadowed(counted, lambda_, c1_i32)
    tl.store(out + split, dot + merge + branch + L0 + in_bb1 + reshape)


def test_kernels_may_use_any_name() -> None:
    flag = torch.ones(1)
    out = launch(borrowed_names, torch.empty(N, dtype=torch.int32), flag, 0, N=N)
    i = RANGE.long()
    shuffled = (2 * i - 1).reshape(2, N // 2).T.reshape(-1)
    added = sum(j + (7 + 1) + j * 2 * 3 for j in range(2))
    total = (i + 1) + 2 * i + 2 * (i // 3) + (i + 1)[1::2].sum() + shuffled + added
    assert torch.equal(out, total.int())


@triton.jit
def constants_with_borrowed_names(out, limit):
    pid = tl.program_id(0)
    if pid >= limit:
        return
    left = pid + 1
    in_bb2 = left * 2
    then_1 = in_bb2 + 3
    returned_0 = then_1 * 5
    tl.store(out + pid, returned_0)


def test_constants_may_have_any_name() -> None:
    out = launch(constants_with_borrowed_names, torch.zeros(4, dtype=torch.int32), 3, grid=4)
    assert out.tolist() == [5 * (2 * (pid + 1) + 3) for pid in range(3)] + [0]


# Reductions and scans


@triton.jit
def column_sums(out, x, M: tl.constexpr, N: tl.constexpr):
    pid, rows, cols = tl.program_id(0), tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + pid * M * N + rows[:, None] * N + cols[None, :])
    tl.store(out + pid * N + cols, tl.sum(tl.exp(tile), 0) + tl.sum(tl.sum(tile, 1), 0))


def test_results_do_not_depend_on_how_many_programs_run_together() -> None:
    x = torch.randn(5, 16, 64)
    out = launch(column_sums, torch.empty(5, 64), x, M=16, N=64, grid=5)
    for one, whole in zip(x, out, strict=True):
        assert torch.equal(launch(column_sums, torch.empty(64), one, M=16, N=64), whole)


@triton.jit
def add_mul(a1, b1, a2, b2):
    return a2 * a1, a2 * b1 + b2


@triton.jit
def smaller_pair(a, i, b, j):
    take = (a < b) | ((a == b) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)


@triton.jit
def reductions(out, x, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + rows[:, None] * N + cols[None, :])
    tl.store(out + rows, tl.sum(tile, 1))
    tl.store(out + M + rows, tl.max(tile, 1))
    tl.store(out + 2 * M + rows, tl.min(tile, 1))
    tl.store(out + 3 * M + rows, tl.argmax(tile, 1).to(tl.float32))
    tl.store(out + 4 * M + rows, tl.argmin(tile, 1).to(tl.float32))
    index = tl.broadcast_to(cols[None, :], (M, N))
    least, where = tl.reduce((tile, index), 1, smaller_pair)
    tl.store(out + 5 * M + rows, least)
    tl.store(out + 6 * M + rows, where.to(tl.float32))
    tl.store(out + 7 * M + rows, tl.sum(tl.sum(tile, 0), 0) + tl.zeros([M], tl.float32))
    tl.store(out + 8 * M + rows, tl.sum(tl.max(tile, 1, keep_dims=True) + tile, 1))
    tl.store(out + 9 * M + rows, tl.xor_sum((tile * 4).to(tl.int32), 1).to(tl.float32))


def test_reductions_agree_with_torch() -> None:
    x = torch.randint(-8, 8, (8, 32)).float()
    out = launch(reductions, torch.empty(10, 8), x, M=8, N=32)
    xor = np.bitwise_xor.reduce((x * 4).int().numpy(), axis=1)
    first_min = torch.tensor([row.tolist().index(min(row)) for row in x])
    first_max = torch.tensor([row.tolist().index(max(row)) for row in x])
    expected = [
        x.sum(1), x.amax(1), x.amin(1), first_max, first_min, x.amin(1), first_min,
        x.sum().expand(8), x.sum(1) + 32 * x.amax(1), torch.from_numpy(xor),
    ]  # fmt: skip
    for got, want in zip(out, expected, strict=True):
        assert torch.equal(got, want.float())


@triton.jit
def scans(out, a, b, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, tl.cumsum(y, 0, reverse=REVERSE))
    tl.store(out + N + i, tl.cumprod(x, 0, reverse=REVERSE))
    _, h = tl.associative_scan((x, y), 0, add_mul, reverse=REVERSE)
    tl.store(out + 2 * N + i, h)
    m = tl.associative_scan(y, 0, bigger, reverse=REVERSE)
    tl.store(out + 3 * N + i, m)


@triton.jit
def bigger(a, b):
    return tl.maximum(a, b)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_run_in_both_directions(reverse: bool) -> None:
    a = torch.tensor([1.0, -1.0])[torch.randint(0, 2, (N,))]
    b = torch.randint(-4, 5, (N,)).float()
    out = launch(scans, torch.empty(4, N), a, b, N=N, REVERSE=reverse)
    order = range(N - 1, -1, -1) if reverse else range(N)
    total, product, state, most = 0.0, 1.0, 0.0, -np.inf
    for i in order:
        total, product = total + b[i].item(), product * a[i].item()
        state, most = a[i].item() * state + b[i].item(), max(most, b[i].item())
        assert out[:, i].tolist() == [total, product, state, most]


# Shapes


@triton.jit
def values_of_many_types(out, wide, narrow, N: tl.constexpr):
    rows, columns = tl.arange(0, N), tl.arange(0, 2 * N)
    tl.static_assert(columns.shape[0] == 2 * N and columns.numel == 2 * N)
    total = tl.sum(tl.load(wide + rows[:, None] * 2 * N + columns[None, :]), 1)
    tl.static_assert(total.shape[0] == N and total.numel == N)
    x = tl.load(narrow + rows)
    tl.static_assert(x.dtype == tl.bfloat16 and x.to(tl.float32).dtype == tl.float32)
    tl.store(out + rows, x + total)


def test_values_of_one_shape_or_dtype_keep_their_own_type() -> None:
    wide, narrow = torch.randn(N, 2 * N), torch.randn(N).bfloat16()
    out = launch(values_of_many_types, torch.empty(N), wide, narrow, N=N)
    torch.testing.assert_close(out, narrow + wide.sum(1))


@triton.jit
def sorting(out, x, N: tl.constexpr, DESCENDING: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i), descending=DESCENDING))
    tl.store(out + N + i, tl.flip(tl.load(x + i), 0))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_flip_agree_with_torch(descending: bool) -> None:
    x = torch.randn(N)
    out = launch(sorting, torch.empty(2, N), x, N=N, DESCENDING=descending)
    assert torch.equal(out[0], x.sort(descending=descending).values)
    assert torch.equal(out[1], x.flip(0))


@triton.jit
def shapes(out, x, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + rows[:, None] * N + cols[None, :])
    i = tl.arange(0, M * N)
    tl.store(out + i, tl.ravel(tl.trans(tile)))
    tl.store(out + M * N + i, tl.reshape(tile, (M * N,)))
    left, right = tl.split(tl.reshape(tile, (M, N // 2, 2)))
    tl.store(out + 2 * M * N + i, tl.ravel(tl.join(right, left)))
    tl.store(out + 3 * M * N + i, tl.ravel(tl.interleave(left, right)))
    cube = tl.permute(tl.reshape(tile, (2, M // 2, N)), (1, 2, 0))
    tl.store(out + 4 * M * N + i, tl.ravel(cube))
    column = tl.sum(tile, 1)
    spread = tl.broadcast_to(column[:, None], (M, N))
    tl.store(out + 5 * M * N + i, tl.reshape(spread, (M * N,)))
    both = tl.cat(column, column, can_reorder=True)
    tl.store(out + 6 * M * N + tl.arange(0, 2 * M), both)


def test_elements_keep_their_order_when_shapes_change() -> None:
    x = torch.randint(0, 9, (8, 16)).float()
    out = launch(shapes, torch.zeros(7, 128), x, M=8, N=16)
    assert torch.equal(out[0], x.T.reshape(-1))
    assert torch.equal(out[1], x.reshape(-1))
    assert torch.equal(out[2], x.reshape(8, 8, 2).flip(2).reshape(-1))
    assert torch.equal(out[3], x.reshape(-1))
    assert torch.equal(out[4], x.reshape(2, 4, 16).permute(1, 2, 0).reshape(-1))
    assert torch.equal(out[5], x.sum(1, keepdim=True).expand(8, 16).reshape(-1))
    assert torch.equal(out[6, :16], x.sum(1).repeat(2))


@triton.jit
def look_up(out, x, index, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    at = rows[:, None] * N + cols[None, :]
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), 1))


def test_gather_agrees_with_torch() -> None:
    x, index = torch.randn(4, 16), torch.randint(0, 16, (4, 16), dtype=torch.int32)
    out = launch(look_up, torch.empty(4, 16), x, index, M=4, N=16)
    assert torch.equal(out, x.gather(1, index.long()))


@triton.jit
def last_of_each(out, x, lengths, N: tl.constexpr):
    pid = tl.program_id(0)
    length = tl.load(lengths + pid)
    for start in range(0, length, N):
        tile = tl.load(x + start + tl.arange(0, N))
        last = tl.gather(tile, tl.full([1], tl.minimum(length - start, N) - 1, tl.int32), 0)
        tl.store(out + pid + tl.arange(0, 1), last)


def test_a_program_that_has_left_the_loop_gathers_nothing() -> None:
    # Three iterations for the last program: the others' indices would be negative by then.
    lengths = torch.tensor([0, 5, 16, 40], dtype=torch.int32)
    x = torch.arange(48.0)
    out = launch(last_of_each, torch.full((4,), -1.0), x, lengths, N=16, grid=4)
    assert out.tolist() == [-1.0, 4.0, 15.0, 39.0]


@triton.jit
def count(out, x, N: tl.constexpr, BINS: tl.constexpr):
    pid = tl.program_id(0)
    values = tl.load(x + pid * N + tl.arange(0, N))
    tl.store(out + pid * BINS + tl.arange(0, BINS), tl.histogram(values, BINS))


def test_a_histogram_counts_each_program_by_itself() -> None:
    x = torch.randint(0, 16, (3, N), dtype=torch.int32)
    out = launch(count, torch.empty(3, 16, dtype=torch.int32), x, N=N, BINS=16, grid=3)
    for got, row in zip(out, x, strict=True):
        assert torch.equal(got, torch.bincount(row, minlength=16).int())


# Numbers


@triton.jit
def integers(out, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a * b)
    tl.store(out + N + i, a // b)
    tl.store(out + 2 * N + i, a % b)
    tl.store(out + 3 * N + i, a >> 3)
    tl.store(out + 4 * N + i, (a.to(tl.uint32, bitcast=True) >> 3).to(tl.int32, bitcast=True))
    tl.store(out + 5 * N + i, a << 5)
    tl.store(out + 6 * N + i, tl.umulhi(a, b))
    less = a.to(tl.uint32, bitcast=True) < b.to(tl.uint32, bitcast=True)
    tl.store(out + 7 * N + i, less.to(tl.int32))
    tl.store(out + 8 * N + i, (a ^ b) & ~b | 5)
    tl.store(out + 9 * N + i, tl.abs(a) + tl.minimum(a, b))
    tl.store(out + 10 * N + i, (a.to(tl.int64) * b.to(tl.int64) >> 32).to(tl.int32))
    tl.store(out + 11 * N + i, a.to(tl.int8).to(tl.int32) + a.to(tl.uint8).to(tl.int32))


def test_integers_wrap_truncate_and_know_their_sign() -> None:
    x = torch.randint(-(2**31), 2**31, (N,), dtype=torch.int32)
    y = torch.randint(1, 2**31, (N,), dtype=torch.int32) * torch.tensor([1, -1]).repeat(N // 2)
    y = y.int()
    out = launch(integers, torch.empty(12, N, dtype=torch.int32), x, y, N=N)
    a, b = x.long(), y.long()
    ua, ub = a % 2**32, b % 2**32
    quotient = torch.div(a, b, rounding_mode="trunc")
    high = [(p * q) >> 32 for p, q in zip(ua.tolist(), ub.tolist(), strict=True)]
    expected = [
        a * b, quotient, a - quotient * b, a >> 3, ua >> 3, a << 5, torch.tensor(high), ua < ub,
        (a ^ b) & ~b | 5, a.abs() + torch.minimum(a, b), (a * b) >> 32,
        a.to(torch.int8).long() + a % 256,
    ]  # fmt: skip
    for got, want in zip(out, expected, strict=True):
        assert torch.equal(got, want.long().to(torch.int32))


@triton.jit
def float_functions(out, x, y, N: tl.constexpr, SINGLE: tl.constexpr, LIBRARY: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.exp(a))
    tl.store(out + N + i, tl.exp2(a))
    tl.store(out + 2 * N + i, tl.log(tl.abs(a)))
    tl.store(out + 3 * N + i, tl.log2(tl.abs(a)))
    tl.store(out + 4 * N + i, tl.sqrt(tl.abs(a)))
    tl.store(out + 5 * N + i, tl.rsqrt(tl.abs(a)))
    tl.store(out + 6 * N + i, tl.sin(a) * tl.cos(b))
    tl.store(out + 7 * N + i, tl.erf(a))
    tl.store(out + 8 * N + i, tl.sigmoid(a))
    tl.store(out + 9 * N + i, tl.floor(a) + tl.ceil(b))
    tl.store(out + 10 * N + i, tl.fma(a, b, a))
    tl.store(out + 11 * N + i, tl.clamp(a, -0.5, 0.5))
    if LIBRARY:
        tl.store(out + 12 * N + i, libdevice.tanh(a))
    tl.store(out + 13 * N + i, tl.softmax(a))
    if SINGLE:
        tl.store(out + 14 * N + i, tl.div_rn(a, b) + tl.sqrt_rn(tl.abs(b)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_functions_agree_with_torch(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, N, dtype=torch.float64).to(dtype)
    single = dtype == torch.float32
    out = torch.empty(14 + single, N, dtype=dtype)
    launch(float_functions, out, a, b, N=N, SINGLE=single, LIBRARY=True)
    a, b = a.double(), b.double()
    m = a.abs()
    expected = [
        a.exp(), a.exp2(), m.log(), m.log2(), m.sqrt(), m.rsqrt(), a.sin() * b.cos(), a.erf(),
        a.sigmoid(), a.floor() + b.ceil(), a * b + a, a.clamp(-0.5, 0.5), a.tanh(),
        a.softmax(0), a / b + b.abs().sqrt(),
    ]  # fmt: skip
    ulp = torch.finfo(dtype).eps
    for got, want in zip(out, expected, strict=single):
        assert ((got.double() - want).abs() <= 4 * ulp * want.abs().clamp(min=1)).all()


@triton.jit
def nan_rules(out, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.maximum(a, b))
    tl.store(out + N + i, tl.minimum(a, b))
    tl.store(out + 2 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * N + i, (a != b).to(tl.float32))
    tl.store(out + 5 * N + i, (a < b).to(tl.float32))


def test_maximum_ignores_nan_unless_it_should_propagate() -> None:
    nan = float("nan")
    a, b = torch.tensor([1.0, nan, 1.0, nan]), torch.tensor([2.0, 2.0, nan, nan])
    out = launch(nan_rules, torch.empty(6, 4), a, b, N=4)
    expected = torch.tensor(
        [[2, 2, 1, nan], [1, 2, 1, nan], [2, nan, nan, nan], [1, nan, nan, nan],
         [1, 1, 1, 1], [1, 0, 0, 0]]
    )  # fmt: skip
    assert torch.equal(out.nan_to_num(-7), expected.nan_to_num(-7))


@triton.jit
def narrow_arithmetic(out, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a * b)
    tl.store(out + 2 * N + i, a - b * a)
    tl.store(out + 3 * N + i, (a.to(tl.float32) * 1.2345).to(out.dtype.element_ty))
    tl.store(out + 4 * N + i, tl.sum(a, 0).to(out.dtype.element_ty) + a)
    tl.store(out + 5 * N + i, i.to(out.dtype.element_ty) * 17.3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_floats_are_rounded_after_every_operation(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, N).to(dtype)
    out = launch(narrow_arithmetic, torch.empty(6, N, dtype=dtype), a, b, N=N)
    assert torch.equal(out[0], a + b)
    assert torch.equal(out[1], a * b)
    assert torch.equal(out[2], a - b * a)
    assert torch.equal(out[3], (a.float() * 1.2345).to(dtype))
    assert torch.equal(out[5], RANGE.to(dtype) * torch.tensor(17.3, dtype=dtype))


@triton.jit
def convert(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
@pytest.mark.parametrize("source", [torch.float32, torch.float16])
def test_float_conversions_round_to_nearest_even(source: Any, target: Any) -> None:
    x = (torch.randn(N) * 10).to(source)
    out = torch.zeros(N, dtype=target)
    convert[(1,)](out, x, N=N)
    assert torch.equal(out.float(), x.to(target).float())
    back = torch.zeros(N)
    convert[(1,)](back, out, N=N)
    assert torch.equal(back, out.float())


@triton.jit
def float_assembly(out, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    softplus = tl.inline_asm_elementwise(
        asm="""{
            .reg .pred p;
            setp.gt.f32 p, $1, 2.;
            @p  mov.f32 $0, $1;
            @!p mul.f32 $0, $1, 0f3FB8AA3B;
            @!p ex2.approx.ftz.f32 $0, $0;
            @!p add.f32 $0, $0, 1.0;
            @!p lg2.approx.ftz.f32 $0, $0;
            @!p mul.f32 $0, $0, 0.6931471805599453;
        }""",
        constraints="=r,r",
        args=[a],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    total, difference = tl.inline_asm_elementwise(
        asm="add.f32 $0, $2, $3; sub.rn.f32 $1, $2, $3;",
        constraints="=f,=f,f,f",
        args=[a, b],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )
    tl.store(out + i, softplus)
    tl.store(out + N + i, total)
    tl.store(out + 2 * N + i, difference)


def test_inline_assembly_of_floats_is_executed() -> None:
    x, y = 3 * torch.randn(2, N)
    out = launch(float_assembly, torch.empty(3, N), x, y, N=N)
    softplus = torch.where(x > 2, x, x.exp().log1p())
    assert ((out[0] - softplus).abs() <= 1e-6 * (1 + softplus)).all()
    assert torch.equal(out[1], x + y)
    assert torch.equal(out[2], x - y)


@triton.jit
def dependent(out, x, N: tl.constexpr):
    gdc_wait()
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)
    gdc_launch_dependents()


def test_a_launch_that_waits_for_the_one_before_sees_its_results() -> None:
    x, y, z = torch.zeros(3, N)
    launch(dependent, y, x, N=N)
    launch(dependent, z, y, N=N)
    assert torch.equal(z, x + 2)


@triton.jit
def foreign_assembly(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.inline_asm_elementwise(
        asm="shf.l.wrap.b32 $0, $1, $1, 7;",
        constraints="=r,r",
        args=[a],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + i, b)


def test_inline_assembly_that_is_not_understood_is_quoted() -> None:
    with pytest.raises(NotImplementedError, match=r"shf\.l\.wrap\.b32"):
        launch(foreign_assembly, torch.empty(N), torch.zeros(N), N=N)


@triton.jit
def fast_functions(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, libdevice.fast_cosf(a))
    tl.store(out + N + i, libdevice.fast_sinf(a))
    tl.store(out + 2 * N + i, libdevice.fast_expf(a))
    tl.store(out + 3 * N + i, libdevice.fast_dividef(a, 2 + a * a))


def test_fast_variants_of_library_functions_agree_with_torch() -> None:
    x = torch.randn(N)
    out = launch(fast_functions, torch.empty(4, N), x, N=N)
    expected = torch.stack([x.cos(), x.sin(), x.exp(), x / (2 + x * x)])
    assert ((out - expected).abs() <= 1e-6 * (1 + expected.abs())).all()


@triton.jit
def library_functions(out, integers, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, libdevice.asin(a) + libdevice.acos(a))
    tl.store(out + N + i, libdevice.asinh(b) + libdevice.acosh(1 + b * b) + libdevice.atanh(a))
    tl.store(out + 2 * N + i, libdevice.erfc(b) + libdevice.erfinv(a))
    tl.store(out + 3 * N + i, libdevice.normcdf(b) + libdevice.fdim(a, b))
    tl.store(out + 4 * N + i, libdevice.copysign(a, b) + libdevice.hypot(a, b))
    tl.store(out + 5 * N + i, libdevice.cbrt(b) + libdevice.nearbyint(10 * b))
    tl.store(out + 6 * N + i, libdevice.add_rn(a, libdevice.mul_rn(a, b)))
    tl.store(out + 7 * N + i, libdevice.div_rn(a, b) + libdevice.fma_rn(a, b, a))
    tl.store(integers + i, libdevice.llrint(10 * b).to(tl.int32))
    tl.store(integers + N + i, libdevice.signbit(b).to(tl.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_library_functions_agree_with_torch(dtype: torch.dtype) -> None:
    a, b = (torch.rand(N) * 1.8 - 0.9).to(dtype), torch.randn(N).to(dtype)
    out, integers = torch.empty(8, N, dtype=dtype), torch.empty(2, N, dtype=torch.int32)
    launch(library_functions, out, integers, a, b, N=N)
    c, d = a.double(), b.double()
    expected = [
        c.asin() + c.acos(), d.asinh() + (1 + d * d).acosh() + c.atanh(), d.erfc() + c.erfinv(),
        torch.special.ndtr(d) + (c - d).relu(), c.abs() * d.sign() + c.hypot(d),
        d.sign() * d.abs() ** (1 / 3) + (10 * b).round().double(), c + c * d, c / d + c * d + c,
    ]  # fmt: skip
    for got, want in zip(out.double(), expected, strict=True):
        bound = 16 * torch.finfo(dtype).eps * want.abs().clamp(min=1)
        # The argument of acosh is rounded, next to 1 by the most.
        assert ((got - want).abs() <= bound * (1 + 1 / d.abs())).all()
    assert torch.equal(integers[0], (10 * b).round().int())
    assert torch.equal(integers[1], b.signbit().int())


@triton.jit
def bits_of_floats(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    flipped = libdevice.float_as_int(tl.load(x + i)) ^ -(2**31)
    tl.store(out + i, libdevice.int_as_float(flipped))


def test_library_functions_of_float32_alone_are_known() -> None:
    x = torch.tensor([0.0, -1.5, torch.inf, 3.0])
    assert launch(bits_of_floats, torch.empty(4), x, N=4).tolist() == (-x).tolist()
    x = torch.tensor([-1.0, 0.25, 2.0, torch.nan])
    assert launch(saturated, torch.empty(4), x, N=4).tolist() == [0, 0.25, 1, 0]


@triton.jit
def saturated(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, libdevice.saturatef(tl.load(x + i)))


def test_float_to_integer_truncates() -> None:
    x = torch.tensor([1.9, -1.9, 0.5, -0.5, 1e9, -7.0, 3e5, 2.0**31])
    out = launch(convert, torch.zeros(8, dtype=torch.int32), x, N=8)
    assert out.tolist() == [1, -1, 0, 0, 10**9, -7, 300000, 2**31 - 1]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool])
def test_integer_tensors_load_with_their_sign(dtype: torch.dtype) -> None:
    x = torch.randint(-128, 128, (N,)).to(dtype)
    assert torch.equal(launch(convert, torch.zeros(N, dtype=torch.int64), x, N=N), x.long())
    assert torch.equal(launch(convert, torch.zeros(N), x, N=N), x.float())
    assert torch.equal(launch(convert, torch.zeros(N, dtype=dtype), x, N=N), x)


@triton.jit
def random_numbers(out, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i))
    tl.store(out + 4096 + i, tl.randn(seed, i))
    tl.store(out + 8192 + i, tl.randint(seed, i).to(tl.float32))


def test_random_numbers_are_philox() -> None:
    out = launch(random_numbers, torch.empty(3, 4096), 7, N=1024, grid=4)
    words = philox(7, 4096)
    signed = words.astype(np.int32)
    magnitude = np.where(signed < 0, -signed.astype(np.int64) - 1, signed)
    uniform = torch.from_numpy(magnitude.astype(np.float32)) * 4.6566127342e-10
    assert torch.equal(out[0], uniform)
    assert torch.equal(out[2], torch.from_numpy(words.view(np.uint32).astype(np.float32)))
    assert abs(out[1].mean()) < 0.1
    assert abs(out[1].std() - 1) < 0.1


def philox(seed: int, count: int) -> Any:
    """First words of Philox-4x32-10 with counters (i, 0, 0, 0), in Python integers."""
    words = []
    for i in range(count):
        c, k0, k1 = [i, 0, 0, 0], seed, 0
        for _ in range(10):
            high = [0xD2511F53 * c[0] >> 32, 0xCD9E8D57 * c[2] >> 32]
            low = [0xD2511F53 * c[0] % 2**32, 0xCD9E8D57 * c[2] % 2**32]
            c = [high[1] ^ c[1] ^ k0, low[1], high[0] ^ c[3] ^ k1, low[0]]
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        words.append(c[0])
    return np.array(words, np.uint32).view(np.int32)


# Memory


@triton.jit
def strided_copy(out, x, n, stride, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i * stride, mask=i < n, other=-1.0), mask=i < n + 2)


def test_masked_lanes_load_other_and_store_nothing() -> None:
    x = torch.randn(50, 3)
    out = launch(strided_copy, torch.full((64,), 9.0), x[:, 1], 50, 3, N=32, grid=2)
    assert torch.equal(out[:50], x[:, 1])
    assert out[50:].tolist() == [-1.0, -1.0] + 12 * [9.0]


@triton.jit
def chosen_pointer(out, x, y, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    source = x
    if pid % 2 == 1:
        source = y
    tl.store(out + pid * N + i, tl.load(source + i))
    lanes = tl.where(i % 2 == 0, x + i, y + i)
    tl.store(out + (pid + 4) * N + i, tl.load(lanes))


def test_a_pointer_may_point_into_different_tensors() -> None:
    x, y = torch.randn(2, N)
    out = launch(chosen_pointer, torch.empty(8, N), x, y, N=N, grid=4)
    even = RANGE % 2 == 0
    for pid in range(4):
        assert torch.equal(out[pid], y if pid % 2 else x)
        assert torch.equal(out[pid + 4], torch.where(even, x, y))


@triton.jit
def pointer_casts(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    bits = x.to(tl.pointer_type(tl.int32))
    tl.store(out + i, tl.load(bits + i))
    halves = x.to(tl.pointer_type(tl.int16))
    tl.store(out + N + i, tl.load(halves + 2 * i).to(tl.int32))
    address = x.to(tl.int64) + i * 4
    tl.store(out + 2 * N + i, tl.load(address.to(tl.pointer_type(tl.int32))))


def test_pointers_can_be_cast() -> None:
    x = torch.randn(N)
    out = launch(pointer_casts, torch.empty(3, N, dtype=torch.int32), x, N=N)
    assert torch.equal(out[0], x.view(torch.int32))
    assert torch.equal(out[1], x.view(torch.int16)[::2].int())
    assert torch.equal(out[2], x.view(torch.int32))


@triton.jit
def walking(out, x, rows, N: tl.constexpr):
    pointer = x + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for _ in range(rows):
        total += tl.load(pointer)
        pointer += N
    tl.store(out + tl.arange(0, N), total)


def test_a_loop_may_carry_a_pointer() -> None:
    x = torch.randint(-9, 9, (5, N)).float()
    assert torch.equal(launch(walking, torch.empty(N), x, 5, N=N), x.sum(0))


@triton.jit
def blocks(out, x, m, n, M: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    source = tl.make_block_ptr(x, (m, n), (n, 1), (pid * M, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(out, (m, n), (n, 1), (pid * M, 0), (M, N), (1, 0))
    for _ in range(0, n, N):
        tile = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, tile * 2, boundary_check=(0, 1))
        source = tl.advance(source, (0, N))
        target = tl.advance(target, (0, N))


def test_block_pointers_stay_within_their_tensor() -> None:
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        pytest.skip("block pointers ended with Triton 3.8")
    x = torch.randn(21, 37)
    assert torch.equal(launch(blocks, torch.empty(21, 37), x, 21, 37, M=8, N=16, grid=3), x * 2)


@triton.jit
def descriptors(out, x, m, n, M: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    source = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    target = tl.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    for j in range(0, n, N):
        target.store([pid * M, j], source.load([pid * M, j]) + 1)


def test_tensor_descriptors_may_be_made_in_the_kernel() -> None:
    x = torch.randn(21, 36)
    out = launch(descriptors, torch.empty(21, 36), x, 21, 36, M=8, N=16, grid=3)
    assert torch.equal(out, x + 1)


@triton.jit
def descriptor_argument(out, x, M: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    out.store([pid * M, 0], x.load([pid * M, 0]) * 3)


def test_tensor_descriptors_may_be_made_on_the_host() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(21, 16), torch.empty(21, 16)
    source, target = (TensorDescriptor.from_tensor(t, [8, 16]) for t in (x, out))
    descriptor_argument[(3,)](target, source, M=8, N=16)
    assert torch.equal(out, x * 3)


# Atomics


@triton.jit
def atomic_histogram(out, x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(out + tl.load(x + i), 1)


def test_atomic_adds_to_one_address_all_count() -> None:
    x = torch.randint(0, 8, (4 * N,), dtype=torch.int32)
    out = launch(atomic_histogram, torch.zeros(8, dtype=torch.int32), x, N=N, grid=4)
    assert torch.equal(out, torch.bincount(x).int())


@triton.jit
def atomics(out, x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + i)
    same = out + i * 0
    tl.atomic_max(same, value)
    tl.atomic_min(same + 1, value)
    tl.atomic_and(same + 2, value)
    tl.atomic_or(same + 3, value)
    tl.atomic_xor(same + 4, value)
    ticket = tl.atomic_add(out + 5, 1)
    tl.store(out + 8 + ticket, 1)
    first = tl.atomic_cas(out + 6, 0, tl.program_id(0) + 1)
    tl.store(out + 16 + tl.program_id(0), first)
    tl.atomic_xchg(out + 7, 42)


def test_atomics_return_the_old_value() -> None:
    x = torch.randint(-99, 99, (4 * N,), dtype=torch.int32)
    start = torch.zeros(24, dtype=torch.int32)
    start[2] = -1
    out = launch(atomics, start.clone(), x, N=N, grid=4)
    values = x.numpy()
    bits = [ufunc.reduce(values) for ufunc in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
    assert out[:8].tolist() == [max(0, values.max()), min(0, values.min()), *bits, 4, 1, 42]
    assert out[8:16].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert out[16:20].tolist() == [0, 1, 1, 1]


@triton.jit
def atomic_floats(out, x, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    value = tl.load(x + pid * N + i)
    tl.atomic_add(out + i, value, mask=i < N - 1)
    tl.atomic_max(out + N + i, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_float_atomics_of_all_programs_count(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (5, N)).to(dtype)
    if dtype == torch.float16:
        out = launch(atomic_half, torch.zeros(N, dtype=dtype), x, N=N, grid=5)
        assert torch.equal(out, x.sum(0))
        return
    out = launch(atomic_floats, torch.zeros(2, N, dtype=dtype), x, N=N, grid=5)
    assert torch.equal(out[0, :-1], x.sum(0)[:-1])
    assert out[0, -1] == 0
    assert torch.equal(out[1], x.amax(0).clamp(min=0))


@triton.jit
def atomic_half(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out + i, tl.load(x + tl.program_id(0) * N + i))


@triton.jit
def locked(out, lock, x, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + tl.program_id(0) * N + i)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + i, tl.load(out + i) + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_a_spin_lock_is_taken_by_one_program_after_the_other() -> None:
    x, lock = torch.randint(-9, 9, (6, N)).float(), torch.zeros(1, dtype=torch.int32)
    out = torch.zeros(N)
    locked[(6,)](out, lock, x, N=N)
    assert torch.equal(out, x.sum(0))


# Products


@triton.jit
def products(out, a, b, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, DTYPE: tl.constexpr):
    pid = tl.program_id(0)
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    x = tl.load(a + pid * M * K + m[:, None] * K + k[None, :])
    y = tl.load(b + pid * K * N + k[:, None] * N + n[None, :])
    acc = tl.dot(x, y, out_dtype=DTYPE)
    acc = tl.dot(x, y, acc, out_dtype=DTYPE)
    tl.store(out + pid * M * N + m[:, None] * N + n[None, :], acc)


TRITON_OF = {torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32}


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
        (torch.int8, torch.int32),
        (torch.float8_e5m2, torch.float32),
    ],
)
def test_dot_is_exact_on_small_integers(dtype: torch.dtype, result: torch.dtype) -> None:
    a, b = torch.randint(-4, 5, (3, 16, 32)), torch.randint(-4, 5, (3, 32, 64))
    out = torch.empty(3, 16, 64, dtype=result)
    constants = {"M": 16, "K": 32, "N": 64, "DTYPE": TRITON_OF[result]}
    products[(3,)](out, a.float().to(dtype), b.float().to(dtype), **constants)
    assert torch.equal(out.double(), 2 * a.double() @ b.double())


@triton.jit
def batched_product(out, a, b, B: tl.constexpr, M: tl.constexpr):
    i = tl.arange(0, B)[:, None, None] * M * M
    i += tl.arange(0, M)[None, :, None] * M + tl.arange(0, M)[None, None, :]
    tl.store(out + i, tl.dot(tl.load(a + i), tl.load(b + i), input_precision="ieee"))


def test_dot_multiplies_three_dimensional_tiles() -> None:
    a, b = torch.randn(2, 4, 16, 16)
    out = launch(batched_product, torch.empty(4, 16, 16), a, b, B=4, M=16)
    assert torch.allclose(out, a @ b, rtol=0, atol=1e-5)


def test_tf32_is_emulated_on_request_only() -> None:
    a = torch.full((1, 16, 32), 1 + 2.0**-12)
    b = torch.eye(32, 64)[None].contiguous()
    constants = {"M": 16, "K": 32, "N": 64, "DTYPE": tl.float32}
    out = torch.empty(1, 16, 64)
    products[(1,)](out, a, b, **constants)
    assert (out[..., :32] == 2 + 2.0**-11).all()
    with simulator.simulating(tf32=True):
        products[(1,)](out, a, b, **constants)
    assert (out[..., :32] == 2).all()


# Launches


@triton.jit
def tuples(out, parts, sizes, extra, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for j in tl.static_range(len(parts)):
        total += tl.load(parts[j] + i) * sizes[j]
    if extra is not None:
        total += tl.load(extra + i)
    tl.store(out + i, total)


def test_arguments_may_be_tuples_and_none() -> None:
    x, y, z = torch.randint(-9, 9, (3, N)).float()
    out = launch(tuples, torch.empty(N), (x, y), (2, 5), None, N=N)
    assert torch.equal(out, 2 * x + 5 * y)
    out = launch(tuples, torch.empty(N), (x, y), (1, 5), z, N=N)
    assert torch.equal(out, x + 5 * y + z)


@triton.autotune(
    configs=[triton.Config({"B": 16}), triton.Config({"B": 32}), triton.Config({"B": 64})],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def tuned(out, n, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, i * 0 + B + EVEN, mask=i < n)


@pytest.mark.parametrize(("choice", "block"), [(0, 16), (1, 32), (2, 64), (None, 64)])
def test_the_config_of_an_autotuned_kernel_is_an_option(choice: Any, block: int) -> None:
    def largest(configs: list[Any]) -> Any:
        return max(configs, key=lambda config: config.kwargs["B"])

    out = torch.empty(48, dtype=torch.int32)
    with simulator.simulating(autotune_config=largest if choice is None else choice):
        tuned[lambda meta: (triton.cdiv(48, meta["B"]),)](out, 48)
    assert (out == block + (48 % block == 0)).all()


@triton.autotune(configs=[triton.Config({"B": b}) for b in (16, 64, 32)], key=["n"])
@triton.jit
def tuned_within(out, n, LIMIT: tl.constexpr, B: tl.constexpr):
    tl.static_assert(B <= LIMIT)
    tl.store(out + tl.arange(0, B), B, mask=tl.arange(0, B) < n)


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_config_that_asserts_otherwise_is_left_out(choice: int) -> None:
    out = torch.empty(10, dtype=torch.int32)
    with simulator.simulating(autotune_config=choice):
        tuned_within[(1,)](out, 10, LIMIT=32)
        assert (out == [16, 32, 32][choice]).all()
        with pytest.raises(CompileTimeAssertionFailure):
            tuned_within[(1,)](out, 10, LIMIT=8)


def test_a_tuner_of_a_package_times_a_call() -> None:
    x = torch.ones(8)
    fastest = triton.testing.do_bench(lambda: doubling[(1,)](x, 8, B=8), quantiles=[0.5])
    several = triton.testing.do_bench(lambda: None, quantiles=[0.5, 0.2])
    assert (fastest, several, x.sum().item()) == (0.0, [0.0, 0.0], 16.0)


def doubled(**restored: Any) -> Any:
    """A kernel that doubles its argument, autotuned over two configs."""
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    return triton.autotune(configs=configs, key=["n"], **restored)(doubling)


@triton.jit
def doubling(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def counting(x, n, B: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, B), 1.0, mask=tl.arange(0, B) < n)


def twice(kernel: Any, n: int = 10) -> list[float]:
    """The first element of ones after one call, and after another."""
    x, seen = torch.ones(n), []
    for _ in range(2):
        kernel[(1,)](x, n)
        seen.append(x[0].item())
    return seen


def test_timing_updates_an_argument_that_nobody_restores() -> None:
    simulator.forget_timings()
    assert twice(doubled()) == [4.0, 8.0]
    assert twice(doubled(restore_value=["x"])) == [2.0, 4.0]
    single = triton.autotune(configs=[triton.Config({"B": 16})], key=["n"])(doubling)
    assert twice(single) == [2.0, 4.0]


def test_only_a_call_that_times_configs_resets_arguments() -> None:
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    kernel = triton.autotune(configs=configs, key=["n"], reset_to_zero=["x"])(counting)
    assert twice(kernel) == [1.0, 2.0]
    assert twice(kernel, 11) == [1.0, 2.0]
    assert twice(kernel, 11) == [2.0, 3.0]
    simulator.forget_timings()
    assert twice(kernel, 11) == [1.0, 2.0]


def test_hooks_of_a_config_run_before_every_call() -> None:
    def clear(given: dict[str, Any]) -> None:
        given["x"].zero_()

    configs = [triton.Config({"B": b}, pre_hook=clear) for b in (16, 32)]
    kernel = triton.autotune(configs=configs, key=["n"])(counting)
    assert twice(kernel) == [1.0, 1.0]


@triton.jit
def scalars(out, a, b, c, d):
    tl.store(out, a + b)
    tl.store(out + 1, c)
    tl.store(out + 2, tl.where(d, 1.0, 2.0))


def test_arguments_may_be_scalars_of_every_kind() -> None:
    out = launch(scalars, torch.empty(3), 2**40, 1.5, -3, True)
    assert out.tolist() == [float(np.float32(2**40) + 1.5), -3.0, 1.0]


def test_launch_hooks_are_called() -> None:
    names = []
    knobs = pytest.importorskip("triton.knobs")

    def note(metadata: Any) -> None:
        names.append(metadata.get()["name"])

    hooks = knobs.runtime.launch_enter_hook
    if not hasattr(hooks, "add"):
        pytest.skip("this Triton has a single hook")
    hooks.add(note)
    try:
        launch(scalars, torch.empty(3), 1, 2, 3, 4)
    finally:
        hooks.remove(note)
    assert names == ["scalars"]


def test_packages_are_told_of_a_gpu_and_torch_is_not() -> None:
    x = torch.zeros(2)
    assert x.is_cuda
    assert torch.cuda.get_device_capability(x.device.index) == (9, 0)
    assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(0).name
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream().cuda_stream == 0
    # torch itself would look for a driver if it were told that there is a GPU.
    with torch.cuda.device_of(x), torch.cuda.device(0):
        assert torch.equal(x + 1, torch.ones(2))
    assert not torch.cuda.is_available()


def test_what_a_package_puts_on_the_gpu_is_here() -> None:
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        out, one = torch.empty(N, device=device), torch.ones(1, device=device)
        assert {out.device.type, one.device.type, one.cuda().device.type} == {"cpu"}
        assert simulator.unwritten(out).all()  # type: ignore[union-attr]


def test_a_default_device_holds_for_new_tensors() -> None:
    with torch.device("meta"):
        made = torch.empty(N), torch.ones(1), torch.tensor([1.0])
    assert {x.device.type for x in made} == {"meta"}


@pytest.mark.parametrize("option", ["waves_per_eu", "matrix_instr_nonkdim", "kpack"])
def test_options_for_amd_change_no_result(option: str) -> None:
    out = torch.empty(3, N, dtype=torch.int32)
    assert torch.equal(
        launch(loop_with_own_bound, out.clone(), N=N, grid=3, **{option: 1}),
        launch(loop_with_own_bound, out, N=N, grid=3),
    )


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(KeyError, match="waves_per_cu"):
        launch(loop_with_own_bound, torch.empty(3, N, dtype=torch.int32), N=N, waves_per_cu=1)


@triton.jit
def with_a_pack(out, kpack, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), kpack)


def test_an_argument_may_have_the_name_of_an_option() -> None:
    assert launch(with_a_pack, torch.empty(N), N=N, kpack=3).eq(3).all()


def test_uninstalling_the_simulator_hides_the_gpu() -> None:
    simulator.uninstall()
    try:
        assert not torch.zeros(2).is_cuda
        assert torch.cuda.device_count() == torch.accelerator.device_count()
    finally:
        simulator.install()


def test_a_function_that_allocates_can_be_scripted() -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty([2], dtype=torch.float32)
        return torch.empty_like(y).fill_(1) + x

    assert torch.equal(torch.jit.script(made)(torch.zeros(2)), torch.ones(2))


def test_uninitialised_tensors_without_memory_are_left_alone() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(3).zero_() + x

    x = torch.randn(4, 3)
    assert torch.equal(torch.func.vmap(add)(x), x)
    assert torch.empty(3, device="meta").shape == (3,)


def test_an_empty_grid_runs_nothing() -> None:
    scalars[(0,)](torch.empty(3), 1, 2, 3, 4)


@triton.jit
def assembly(out, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [i], tl.int32, True, 1)
    tl.store(out + i, y)


def test_an_unsupported_operation_is_named_with_its_line() -> None:
    with pytest.raises(NotImplementedError, match=r"inline_asm.*test_features\.py:\d+.*mov\.b32"):
        assembly[(1,)](torch.empty(N, dtype=torch.int32), N=N)


@triton.jit
def printing(x):
    pid = tl.program_id(0)
    tl.device_print("value", tl.load(x + pid))


def test_device_print_names_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    printing[(2,)](torch.tensor([1.5, 2.5]))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["pid (0, 0, 0) value:  1.5", "pid (1, 0, 0) value:  2.5"]
