"""Kernels with planted faults: each is caught at the right source line."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import properties.simulator as simulator
from properties.simulator import memory


@pytest.fixture(autouse=True, params=[0, 1, 3], ids=["slabs", "one by one", "by three"])
def simulated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each fault is found however many programs run together."""
    with simulator.simulating(slab=request.param):
        yield


def line_of(kernel: Any, mark: str) -> int:
    """The line number of a marked source line."""
    lines, first = inspect.getsourcelines(kernel.fn)
    (index,) = [i for i, line in enumerate(lines) if mark in line]
    return first + index


def assert_names(error: simulator.SimulationError, kernel: Any, mark: str, argument: str) -> None:
    line = line_of(kernel, mark)
    assert error.location.line == line
    assert error.argument == argument
    message = str(error)
    assert f"in kernel {kernel.__name__} at {__file__}:{line}\n" in message
    assert mark in message.splitlines()[1]
    assert f"`{argument}`" in message


# Addresses


@triton.jit
def one_row_too_many(x, out, n, D: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, D)
    tile = tl.load(x + row * D + i, mask=row <= n)  # wrong: row < n
    tl.store(out + row * D + i, tile, mask=(row < n) & (i < D))


def test_a_load_one_row_out_of_bounds_is_caught() -> None:
    x, out = torch.randn(5, 16), torch.empty(5, 16)
    with pytest.raises(simulator.LoadOutOfBounds) as caught:
        one_row_too_many[(6,)](x, out, 5, D=16)
    assert_names(caught.value, one_row_too_many, "wrong", "x")
    assert caught.value.program == (5, 0, 0)
    assert caught.value.tile_index == (0,)
    message = str(caught.value)
    assert "shape (5, 16)" in message
    assert "element offset 80, allowed are 0 to 79" in message


def test_accesses_past_a_tensor_inside_a_larger_storage_are_caught() -> None:
    x, out = torch.randn(6, 16)[:5], torch.empty(5, 16)
    with pytest.raises(simulator.LoadOutOfBounds, match="its storage goes on there"):
        one_row_too_many[(6,)](x, out, 5, D=16)


@triton.jit
def copy_columns(x, out, stride, D: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, D)
    tl.store(out + row * D + i, tl.load(x + row * stride + i))  # wrong: no mask


@pytest.mark.parametrize(
    ("columns", "outside"), [(slice(12), 12), (slice(0, 24, 2), 1)], ids=["beside", "between"]
)
def test_columns_outside_a_view_do_not_belong_to_it(columns: slice, outside: int) -> None:
    packed, out = torch.randn(5, 24), torch.empty(5, 16)
    copy_columns[(5,)](packed[:, :16], out, 24, D=16)
    assert torch.equal(out, packed[:, :16])
    with pytest.raises(simulator.LoadOutOfBounds, match="between the elements of the") as caught:
        copy_columns[(5,)](packed[:, columns], torch.empty(5, 16), 24, D=16)
    assert_names(caught.value, copy_columns, "wrong", "x")
    assert caught.value.tile_index == (outside,)


@pytest.mark.parametrize("limit", [0, 2**27], ids=["by division", "by table"])
@pytest.mark.parametrize("seed", range(8))
def test_which_offsets_belong_to_a_view(
    seed: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "TABLE_LIMIT", limit)
    memory.layout.cache_clear()
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 5, (3,), generator=generator).tolist()
    steps = torch.randint(1, 4, (3,), generator=generator).tolist()
    order = torch.randperm(3, generator=generator).tolist()
    base = torch.arange(7 * 7 * 7 * 27).reshape(21, 21, 21)
    parts = [slice(0, size * step, step) for size, step in zip(sizes, steps, strict=True)]
    view = base[tuple(parts)].permute(order)
    extent, member = memory.layout(tuple(view.shape), view.stride())
    memory.layout.cache_clear()
    offsets = np.arange(extent)
    inside = np.ones(extent, bool) if member is None else member(offsets)
    assert extent == view.max().item() + 1
    assert set(offsets[inside]) == set(view.flatten().tolist())


@triton.jit
def store_tile(out, n, D: tl.constexpr, CHECKED: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    if CHECKED:
        tl.store(out + i, i, mask=i < n)
    else:
        tl.store(out + i, i)  # wrong


def test_a_store_past_the_end_is_caught() -> None:
    out = torch.zeros(40, dtype=torch.int32)
    store_tile[(3,)](out, 40, D=16, CHECKED=True)
    with pytest.raises(simulator.StoreOutOfBounds) as caught:
        store_tile[(3,)](out, 40, D=16, CHECKED=False)
    assert_names(caught.value, store_tile, "wrong", "out")
    assert caught.value.program == (2, 0, 0)
    assert caught.value.tile_index == (8,)


@triton.jit
def negative(x, out):
    tl.store(out, tl.load(x - 1))  # wrong


def test_an_offset_below_zero_is_caught() -> None:
    storage = torch.randn(8)
    with pytest.raises(simulator.LoadOutOfBounds, match="element offset -1"):
        negative[(1,)](storage[4:], torch.empty(1))


@triton.jit
def count_out_of_range(counts, x, D: tl.constexpr):
    tl.atomic_add(counts + tl.load(x + tl.arange(0, D)), 1)  # wrong


def test_an_atomic_out_of_bounds_is_caught() -> None:
    x = torch.tensor([0, 1, 2, 4], dtype=torch.int32)
    with pytest.raises(simulator.AtomicOutOfBounds) as caught:
        count_out_of_range[(1,)](torch.zeros(4, dtype=torch.int32), x, D=4)
    assert_names(caught.value, count_out_of_range, "wrong", "counts")


def test_an_empty_tensor_has_no_element() -> None:
    with pytest.raises(simulator.StoreOutOfBounds, match="the tensor is empty"):
        store_tile[(1,)](torch.empty(0, dtype=torch.int32), 0, D=16, CHECKED=False)


@triton.jit
def read_address(table, out):
    pointer = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0), tl.load(pointer))  # wrong


def test_an_address_outside_every_argument_is_caught() -> None:
    x = torch.randn(4)
    table = torch.tensor([x.data_ptr()])
    with pytest.raises(simulator.OutOfBounds, match="lies in no tensor argument"):
        read_address[(1,)](table, torch.empty(1))


# Grids


@triton.jit
def count_programs(out):  # wrong: heads on the second axis
    tl.atomic_add(out, 1)


def test_a_grid_that_no_gpu_launches_is_caught() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    for grid in ((1, 65536), (1, 1, 65536), (2**31,)):
        with pytest.raises(simulator.GridTooLarge, match=f"{max(grid)} programs along axis"):
            count_programs[grid](out)
    with simulator.simulating(grid_limit=8):
        count_programs[(9, 8)](out)
        with pytest.raises(simulator.GridTooLarge) as caught:
            count_programs[(9, 9)](out)
    assert out.item() == 9 * 8
    assert "expected 8 at most" in str(caught.value)
    assert "def count_programs(out):  # wrong" in str(caught.value)


def test_a_kernel_within_a_function_has_a_line_too() -> None:
    @triton.jit
    def within(out):  # wrong: heads on the second axis
        tl.atomic_add(out, 1)

    with pytest.raises(simulator.GridTooLarge) as caught:
        within[(1, 65536)](torch.zeros(1, dtype=torch.int32))
    assert "def within(out):  # wrong" in str(caught.value)


# Index arithmetic


@triton.jit
def far_row(x, out, row, stride):
    offset = row * stride
    tl.store(out, tl.load(x + offset))  # wrong: row * stride in int32


@triton.jit
def far_row_widened_too_late(x, out, row, stride):
    offset = (row * stride).to(tl.int64)  # wrong
    tl.store(out, tl.load(x + offset))


@triton.jit
def far_row_in_int64(x, out, row, stride):
    tl.store(out, tl.load(x + row.to(tl.int64) * stride))


@triton.jit
def far_tile(x, out, row, stride, D: tl.constexpr):
    i = tl.arange(0, D)
    tl.store(out + i, tl.load(x + row.to(tl.int64) * stride + i))


def test_a_tile_far_inside_a_large_tensor_is_read() -> None:
    x = torch.from_numpy(np.zeros(33001 * 65536, np.int8))
    x[33000 * 65536 : 33000 * 65536 + 8] = torch.arange(8)
    out = torch.empty(8, dtype=torch.int8)
    far_tile[(1,)](x, out, 33000, 65536, D=8)
    assert out.tolist() == list(range(8))


def test_an_int32_index_that_wraps_around_is_caught() -> None:
    # Untouched pages take no memory.
    x = torch.from_numpy(np.zeros(33001 * 65536, np.int8))
    out = torch.empty(1, dtype=torch.int8)
    far_row[(1,)](x, out, 32000, 65536)
    far_row_in_int64[(1,)](x, out, 33000, 65536)
    with pytest.raises(simulator.IndexOverflow, match="2162688000 wraps around") as caught:
        far_row[(1,)](x, out, 33000, 65536)
    assert_names(caught.value, far_row, "wrong", "x")
    with pytest.raises(simulator.IndexOverflow, match="wraps around"):
        far_row[(1,)](x[:100], out, 33000, 65536)
    with pytest.raises(simulator.IndexOverflow, match="int32 does not hold") as widened:
        far_row_widened_too_late[(1,)](x, out, 33000, 65536)
    assert widened.value.location.line == line_of(far_row_widened_too_late, "wrong")


def test_with_fewer_index_bits_small_tensors_show_overflows() -> None:
    x, out = torch.zeros(33 * 64, dtype=torch.int8), torch.empty(1, dtype=torch.int8)
    far_row[(1,)](x, out, 32, 64)
    with simulator.simulating(index_bits=12):
        far_row[(1,)](x, out, 31, 64)
        far_row_in_int64[(1,)](x, out, 32, 64)
        with pytest.raises(simulator.IndexOverflow, match="to -2048; integers have 12 bits"):
            far_row[(1,)](x, out, 32, 64)
        with pytest.raises(simulator.IndexOverflow, match="int32 does not hold"):
            far_row_widened_too_late[(1,)](x, out, 32, 64)


@triton.jit
def row_in_a_table(x, table, out, R: tl.constexpr):
    i = tl.arange(0, R)
    row = tl.load(table + i).to(tl.int64)
    tl.store(out + i, tl.load(x + row, mask=i < 1, other=0))


def test_with_fewer_index_bits_a_table_may_mark_unused_rows() -> None:
    x, out = torch.zeros(100), torch.empty(2)
    with simulator.simulating(index_bits=12):
        row_in_a_table[(1,)](x, torch.tensor([7, 2**30], dtype=torch.int32), out, R=2)
        with pytest.raises(simulator.IndexOverflow, match="an integer is 4096"):
            row_in_a_table[(1,)](x, torch.tensor([7, 4096], dtype=torch.int32), out, R=2)


@triton.jit
def row_of_cell(x, out, block, heads, BLOCK: tl.constexpr):
    first = block * BLOCK  # wrong
    tl.store(out, tl.load(x + first // heads))


@triton.jit
def row_of_cell_in_int64(x, out, block, heads, BLOCK: tl.constexpr):
    first = block.to(tl.int64) * BLOCK
    tl.store(out, tl.load(x + first // heads))


def test_with_fewer_bits_a_place_has_to_fit_before_it_is_divided() -> None:
    x, out = torch.arange(99.0), torch.empty(1)
    with simulator.simulating(index_bits=12):
        row_of_cell[(1,)](x, out, 31, 30, BLOCK=64)
        assert out == 66
        row_of_cell_in_int64[(1,)](x, out, 32, 30, BLOCK=64)
        assert out == 68
        with pytest.raises(simulator.IndexOverflow, match="2048, which int32 does not") as caught:
            row_of_cell[(1,)](x, out, 32, 30, BLOCK=64)
    assert caught.value.location.line == line_of(row_of_cell, "wrong")
    row_of_cell[(1,)](x, out, 32, 30, BLOCK=64)
    assert out == 68


@triton.jit
def doubled_bound(bounds, out, token):
    bound = tl.load(bounds)
    tl.store(out, (token < bound * 2).to(tl.float32))  # wrong


@triton.jit
def loaded_bound(bounds, out, token):
    bound = tl.load(bounds)  # wrong
    tl.store(out, (token < bound).to(tl.float32))


@triton.jit
def doubled_count_of_steps(x, out):
    steps = (tl.load(x) * 256).to(tl.int32)
    tl.store(out, (steps * 2).to(tl.float32))


@pytest.mark.parametrize(("kernel", "bound"), [(doubled_bound, 1024), (loaded_bound, 2048)])
def test_with_fewer_index_bits_compared_and_loaded_integers_must_fit(
    kernel: Any, bound: int
) -> None:
    out = torch.empty(1)
    for index_bits in (12, 32):
        with simulator.simulating(index_bits=index_bits):
            kernel[(1,)](torch.tensor([bound - 1], dtype=torch.int32), out, 5)
    bounds = torch.tensor([bound], dtype=torch.int32)
    kernel[(1,)](bounds, out, 5)
    with (
        simulator.simulating(index_bits=12),
        pytest.raises(simulator.IndexOverflow, match="2048, which int32 does not") as caught,
    ):
        kernel[(1,)](bounds, out, 5)
    assert caught.value.location.line == line_of(kernel, "wrong")


def test_integers_converted_from_floats_are_no_indices() -> None:
    out = torch.empty(1)
    with simulator.simulating(index_bits=12):
        doubled_count_of_steps[(1,)](torch.tensor([40.0]), out)
    assert out == 2 * 40 * 256


@triton.jit
def hashed(x, out, n, D: tl.constexpr):
    i = tl.arange(0, D)
    h = (i + 12345) * 1103515245 + 12345
    h = (h ^ (h >> 7)) & (D - 1)
    tl.store(out + i, tl.load(x + h), mask=i < n)


def test_wrapping_on_purpose_is_no_error() -> None:
    x, out = torch.randn(64), torch.empty(64)
    hashed[(1,)](x, out, 64, D=64)
    assert is_written(out)


# Races


@triton.jit
def everybody_writes(out, VALUE: tl.constexpr):
    pid = tl.program_id(0)
    if VALUE == 1:
        tl.store(out, 7)
    else:
        tl.store(out, pid)  # wrong


def test_two_programs_that_write_different_values_race() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    everybody_writes[(4,)](out, VALUE=1)
    assert out.item() == 7
    with pytest.raises(simulator.Race) as caught:
        everybody_writes[(4,)](out, VALUE=0)
    assert_names(caught.value, everybody_writes, "wrong", "out")
    everybody_writes[(1,)](out, VALUE=0)


@triton.jit
def shift_in_place(x, n, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    tile = tl.load(x + i + 1, mask=i + 1 < n)
    tl.store(x + i, tile, mask=i < n)


@triton.jit
def double_in_place(x, n, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def test_reading_what_another_program_writes_is_a_race() -> None:
    x = torch.arange(60.0)
    double_in_place[(4,)](x, 60, D=16)
    assert torch.equal(x, 2 * torch.arange(60.0))
    with pytest.raises(simulator.Race, match="in the same launch") as caught:
        shift_in_place[(4,)](x, 60, D=16)
    assert caught.value.argument == "x"


@triton.jit
def neighbours(x, y, n, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    tile = tl.load(x + i + 1, mask=i + 1 < n)
    tl.store(y + i, tile, mask=i < n)


def test_two_arguments_that_share_memory_can_race() -> None:
    x = torch.arange(60.0)
    neighbours[(4,)](x, torch.empty(60), 60, D=16)
    with pytest.raises(simulator.Race):
        neighbours[(4,)](x, x.view(6, 10), 60, D=16)


@triton.jit
def last_one_sums(partial, out, tickets, count, D: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(partial + pid, pid + 1.0)
    if tl.atomic_add(tickets, 1) == count - 1:
        i = tl.arange(0, D)
        tl.store(out, tl.sum(tl.load(partial + i, mask=i < count, other=0.0), 0))


def test_a_kernel_that_synchronises_through_an_atomic_does_not_race() -> None:
    out = torch.empty(1)
    last_one_sums[(6,)](torch.empty(6), out, torch.zeros(1, dtype=torch.int32), 6, D=8)
    assert out.item() == 21


@triton.jit
def accumulate(out, x, D: tl.constexpr):
    i = tl.arange(0, D)
    tl.atomic_add(out + i, tl.load(x + tl.program_id(0) * D + i))


def test_atomics_do_not_race() -> None:
    x, out = torch.ones(5, 16), torch.zeros(16)
    accumulate[(5,)](out, x, D=16)
    assert (out == 5).all()


@triton.jit
def sets_and_counts(out, FIRST: tl.constexpr):
    if FIRST:
        tl.store(out, 0)  # wrong
        tl.atomic_add(out, 1)
    else:
        tl.atomic_add(out, 1)
        tl.store(out, 0)  # wrong


@pytest.mark.parametrize("first", [True, False])
def test_a_store_beside_the_atomics_of_others_races(first: bool) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    sets_and_counts[(1,)](out, FIRST=first)
    assert out.item() == first
    rivals = r"(another program|program \(\d, 0, 0\)) \w+ (it|another value) in the same launch"
    with pytest.raises(simulator.Race, match=rivals) as caught:
        sets_and_counts[(4,)](out, FIRST=first)
    assert caught.value.argument == "out"


@triton.jit
def counts_and_looks(out, seen):
    tl.atomic_add(out, 1)
    tl.store(seen + tl.program_id(0), tl.load(out))


def test_a_load_beside_the_atomics_of_others_races() -> None:
    out, seen = torch.zeros(2, 4, dtype=torch.int32)
    counts_and_looks[(1,)](out, seen)
    assert seen[0] == 1
    with pytest.raises(simulator.Race, match="in the same launch") as caught:
        counts_and_looks[(4,)](out, seen)
    assert caught.value.argument == "out"


# Results that are not defined


@triton.jit
def divides(out, x, y, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    if tl.program_id(0) < 2:
        tl.store(out + i, tl.load(x + i) // tl.load(y + i))  # wrong


@pytest.mark.parametrize(("x", "y"), [(5, 0), (-(2**31), -1)])
def test_an_undefined_quotient_is_caught(x: int, y: int) -> None:
    a, b = torch.full((32,), 7, dtype=torch.int32), torch.ones(32, dtype=torch.int32)
    # The third program does not divide.
    a[19], b[19] = x, y
    divides[(3,)](torch.empty(32, dtype=torch.int32), a, b, N=8)
    a[11], b[11] = x, y
    with pytest.raises(simulator.UndefinedResult, match="divi") as caught:
        divides[(3,)](torch.empty(32, dtype=torch.int32), a, b, N=8)
    assert caught.value.location.line == line_of(divides, "wrong")
    assert (caught.value.program, caught.value.tile_index) == ((1, 0, 0), (3,))


@triton.jit
def scatters(out, x, N: tl.constexpr, SAME: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    if SAME:
        value = tl.zeros_like(value)
    tl.store(out + tl.program_id(0) * N + i // 2, value)  # wrong


@pytest.mark.parametrize("grid", [1, 4])
def test_lanes_that_store_different_values_to_one_address_are_caught(grid: int) -> None:
    x, out = torch.randn(16), torch.zeros(4, 16)
    scatters[(grid,)](out, x, N=16, SAME=True)
    x[:10] = x[:10:2].repeat_interleave(2)
    with pytest.raises(simulator.UndefinedResult, match="one store gives element") as caught:
        scatters[(grid,)](out, x, N=16, SAME=False)
    assert_names(caught.value, scatters, "wrong", "out")
    assert "element offset 5 two different values" in str(caught.value)


@triton.jit
def steps(out, step):
    for i in range(0, 4, tl.load(step + tl.program_id(0))):  # wrong
        tl.store(out + i, i)


def test_a_loop_with_step_0_is_caught() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    steps[(2,)](out, torch.tensor([1, 2], dtype=torch.int32))
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(simulator.UndefinedResult, match="a loop in steps of 0") as caught:
        steps[(2,)](out, torch.tensor([1, 0], dtype=torch.int32))
    assert caught.value.location.line == line_of(steps, "wrong")
    assert caught.value.program == (1, 0, 0)


# Memory that nobody wrote


def is_written(x: torch.Tensor) -> bool:
    mask = simulator.unwritten(x)
    return mask is None or not mask.any()


@triton.jit
def forgets_the_tail(x, out, n, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n // D * D)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_load_of_an_unwritten_tail_is_caught(dtype: torch.dtype) -> None:
    x, out = torch.randn(40).to(dtype), torch.empty(40, dtype=dtype)
    forgets_the_tail[(3,)](x, out, 40, D=16)
    mask = simulator.unwritten(out)
    assert mask is not None
    assert mask.tolist() == [False] * 32 + [True] * 8
    assert is_written(x)
    with pytest.raises(simulator.UninitializedRead) as caught:
        double_in_place[(3,)](out, 40, D=16)
    assert caught.value.argument == "x"
    assert "nobody has written element offset 32" in str(caught.value)


@triton.jit
def reads_more_than_it_uses(out, x, n, D: tl.constexpr):
    i = tl.arange(0, D)
    tile = tl.load(x + i)
    tl.store(out + i, tl.where(i < n, tile, 0.0))


def test_unwritten_memory_reads_as_nan_on_request() -> None:
    x = torch.empty(16)
    x[:8] = 1
    with simulator.simulating(unwritten="nan"):
        out = torch.empty(16)
        reads_more_than_it_uses[(1,)](out, x, 8, D=16)
        assert out.tolist() == [1.0] * 8 + [0.0] * 8
        reads_more_than_it_uses[(1,)](out, x, 12, D=16)
        assert out.isnan().tolist() == [False] * 8 + [True] * 4 + [False] * 4
        with pytest.raises(simulator.UninitializedRead):
            reads_more_than_it_uses[(1,)](out, torch.empty(16, dtype=torch.int32), 8, D=16)
    with pytest.raises(simulator.UninitializedRead):
        reads_more_than_it_uses[(1,)](out, x, 8, D=16)


@triton.jit
def looks_past_the_tile(out, x, index, D: tl.constexpr):
    i = tl.arange(0, D)
    tl.store(out + i, tl.gather(tl.load(x + i), tl.load(index + i), 0))


def test_a_gather_outside_its_tile_is_named() -> None:
    index = torch.arange(16, dtype=torch.int32) + 1
    with pytest.raises(simulator.GatherOutOfBounds, match="index 16 into an axis of 16") as caught:
        looks_past_the_tile[(1,)](torch.empty(16), torch.zeros(16), index, D=16)
    assert "tl.gather" in caught.value.location.text


def test_an_unwritten_output_can_be_demanded() -> None:
    x, out = torch.randn(40), torch.empty(40)
    forgets_the_tail[(3,)](x, out, 40, D=16)
    with pytest.raises(simulator.UnwrittenOutput, match=r"8 of 40 .* first at \(32,\)"):
        simulator.require_written(out=out)
    simulator.require_written(x=x)


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.zero_(),
        lambda t: t.copy_(torch.ones(40)),
        lambda t: torch.add(torch.ones(40), 1, out=t),
        lambda t: t.__setitem__(slice(None), 3.0),
        lambda t: t.data.fill_(2),
        lambda t: t.detach().normal_(),
        lambda t: t.view(4, 10).uniform_(),
        lambda t: t.numpy().fill(5),
        lambda t: t.fill_(float("nan")),
        lambda t: torch.nn.init.ones_(t),
    ],
)
def test_whatever_the_host_writes_counts(write: Any) -> None:
    x = torch.empty(40)
    assert simulator.unwritten(x).all()  # type: ignore[union-attr]
    write(x)
    assert is_written(x)
    double_in_place[(3,)](x, 40, D=16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty_like(torch.ones(40)),
        lambda: torch.ones(2).new_empty(40),
        lambda: torch.empty_strided((40,), (1,)),
        lambda: torch.empty(100)[30:70],
        lambda: torch.empty(40, 2)[:, 1],
        lambda: torch.empty(40, dtype=torch.bfloat16),
    ],
)
def test_every_allocator_of_uninitialised_memory_is_followed(make: Any) -> None:
    x = make()
    assert simulator.unwritten(x).all()  # type: ignore[union-attr]
    x[3] = 1
    expected = torch.arange(40) != 3
    assert torch.equal(simulator.unwritten(x), expected)  # type: ignore[arg-type]


def test_freed_memory_is_forgotten() -> None:
    for _ in range(20):
        x = torch.empty(1000)
        assert simulator.unwritten(x) is not None
        del x
        y = torch.zeros(1000)
        assert is_written(y)
        double_in_place[(63,)](y, 1000, D=16)
        del y


def test_freed_memory_may_hold_any_number() -> None:
    """Even the pattern of unwritten memory, which some NaN may equal."""
    for _ in range(20):
        x = torch.empty(1000, dtype=torch.bfloat16)
        assert simulator.unwritten(x).all()  # type: ignore[union-attr]
        del x
        y = torch.zeros(1000, dtype=torch.int16) + 0x7FFD
        assert is_written(y.view(torch.bfloat16))
        del y


# Assertions and locks


@triton.jit
def asserts(x, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    tl.device_assert(tl.load(x + i) > 0, "must be positive")  # wrong


def test_a_device_assertion_that_fails_is_caught() -> None:
    x = torch.ones(32)
    asserts[(4,)](x, D=8)
    x[19] = -1
    with pytest.raises(simulator.DeviceAssertion, match="must be positive") as caught:
        asserts[(4,)](x, D=8)
    assert caught.value.location.line == line_of(asserts, "wrong")
    assert (caught.value.program, caught.value.tile_index) == ((2, 0, 0), (3,))


@triton.jit
def assumes(out, n):
    tl.assume(n > 3)  # wrong
    tl.store(out, n)


def test_an_assumption_is_a_promise() -> None:
    assumes[(1,)](torch.zeros(1), 4)
    with pytest.raises(simulator.DeviceAssertion) as caught:
        assumes[(1,)](torch.zeros(1), 3)
    assert caught.value.location.line == line_of(assumes, "wrong")


@triton.jit
def promises(out, x, start, n, BLOCK: tl.constexpr):
    for first in range(start, n, BLOCK):
        first = tl.multiple_of(first, BLOCK)  # wrong
        i = first + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def test_a_promised_multiple_is_one() -> None:
    x, out = torch.randn(20), torch.zeros(20)
    promises[(1,)](out, x, 0, 20, BLOCK=8)
    assert torch.equal(out, x)
    with pytest.raises(simulator.DeviceAssertion, match="no multiple of 8") as caught:
        promises[(1,)](out, x, 4, 20, BLOCK=8)
    assert caught.value.location.line == line_of(promises, "wrong")


@triton.jit
def promises_an_address(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    # False of all rows but the first. Their loads are masked one by one.
    rows = tl.multiple_of(x + i[:, None] * n + i[None, :], (1, 16))
    tl.store(out, tl.sum(tl.load(rows, mask=i[None, :] < n, other=0.0)))
    tl.store(out + 1, tl.load(tl.multiple_of(x, 16)))  # wrong


def test_a_promise_about_an_address_counts_bytes() -> None:
    x, out = torch.randn(20), torch.zeros(2)
    promises_an_address[(1,)](x[4:], out, 3, BLOCK=4)
    with pytest.raises(simulator.DeviceAssertion, match="no multiple of 16") as caught:
        promises_an_address[(1,)](x[1:], out, 3, BLOCK=4)
    assert caught.value.location.line == line_of(promises_an_address, "wrong")


@triton.jit
def copies_by_descriptor(out, x, m, n, stride, D: tl.constexpr):
    rows = tl.make_tensor_descriptor(x, [m, n], [stride, 1], [D, D])  # wrong
    copy = tl.make_tensor_descriptor(out, [m, n], [n, 1], [D, D])
    copy.store([0, 0], rows.load([0, 0]))


@pytest.mark.parametrize(
    ("start", "stride", "what"), [(0, 20, None), (1, 20, "address"), (0, 18, "stride 0")]
)
def test_what_tma_cannot_address_is_caught(start: int, stride: int, what: str | None) -> None:
    x, out = torch.randn(200)[start:].as_strided((8, 16), (stride, 1)), torch.zeros(8, 16)
    launch = partial(copies_by_descriptor[(1,)], out, x, 8, 16, stride, D=8)
    if what is None:
        launch()
        assert torch.equal(out[:, :8], x[:, :8])
        return
    with pytest.raises(simulator.DeviceAssertion, match=f"{what} of a tensor desc") as caught:
        launch()
    assert caught.value.location.line == line_of(copies_by_descriptor, "wrong")


@triton.jit
def waits_forever(lock):
    while tl.atomic_cas(lock, 0, 1) == 1:  # wrong: never released
        pass


def test_a_lock_that_is_never_released_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("properties.simulator.runtime.LOOP_LIMIT", 1000)
    with pytest.raises(simulator.Stuck, match="wait for a program") as caught:
        waits_forever[(2,)](torch.zeros(1, dtype=torch.int32))
    assert caught.value.location.line == line_of(waits_forever, "wrong")


def test_checks_can_be_left_out() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with simulator.simulating(checks=False):
        everybody_writes[(4,)](out, VALUE=0)
    assert out.item() == 3
