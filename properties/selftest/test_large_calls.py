"""The law finds what fails on large tensors, on small ones, and nothing else."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from properties import scope, simulator
from properties.cases.case import Case
from properties.jobs import judge
from properties.laws import Subject, Violation
from properties.targets import Adapter, Implementation
from properties.targets.bounds import one_token_each
from properties.targets.engines import one_query

CPU = torch.device("cpu")


@triton.jit
def copy_row(x, y, D, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    row = row.to(tl.int64) if WIDE else row
    d = tl.arange(0, BLOCK)
    tl.store(y + row * D + d, tl.load(x + row * D + d, mask=d < D), mask=d < D)


@triton.jit
def copy_tile(x, y, D, rows, TILE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    i, d = tl.arange(0, TILE)[:, None], tl.arange(0, BLOCK)[None, :]
    kept = (first + i < rows) & (d < D)
    tl.store(y + first * D + i * D + d, tl.load(x + first * D + i * D + d, mask=kept), mask=kept)


@triton.jit
def copy_one(x, y, row, D):
    tl.store(y, tl.load(x + row * D))


@triton.jit
def do_nothing(x):
    tl.load(x)


def copied(x: Tensor, wide: bool) -> Tensor:
    y = torch.empty_like(x)
    rows, D = x.shape[0] * x.shape[1], x.shape[2]
    copy_row[(rows,)](x, y, D, WIDE=wide, BLOCK=triton.next_power_of_2(D))
    return y


def of_rows(x: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
    return copied(x, wide=True)


def narrow(x: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
    return copied(x, wide=False)


def of_tiles(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    rows, D = x.shape[0] * x.shape[1], x.shape[2]
    blocks = {"TILE": 1024, "BLOCK": triton.next_power_of_2(D)}
    copy_tile[(triton.cdiv(rows, 1024),)](x, y, D, rows, **blocks)
    return y


def on_the_second_axis(x: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
    sequences = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    do_nothing[(1, 2 * sequences)](x)
    return of_rows(x)


def on_the_first_axis(x: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
    sequences = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    do_nothing[(2 * sequences, 8)](x)
    return of_rows(x)


def by_tokens_on_the_second_axis(x: Tensor) -> Tensor:
    do_nothing[(x.shape[0], x.shape[1])](x)
    return of_rows(x)


def narrow_behind_a_constant(x: Tensor) -> Tensor:
    copy_one[(1,)](torch.zeros(20_032), torch.zeros(1), 625, 32)
    return narrow(x)


def target(kernel: Callable[..., Any], **more: Any) -> Adapter:
    one = Implementation(kernel, forward_only=True, **more)
    return Adapter({"cumsum": {"some": one}}, triton=True)


CASES = {
    "tokens": Case.of("cumsum", "some", {"B": 1, "D": 2}, (3,)),
    "rows": Case.of("cumsum", "some", {"B": 2, "D": 2}, (3,)),
    "pack": Case.of("cumsum", "some", {"B": 1, "D": 2}, (3,), packed=True),
}


def judged(kernel: Callable[..., Any], along: str, **more: Any) -> None:
    made = target(kernel, **more)
    assert "large_calls" in scope.laws(made, "cumsum", "some")
    judge("large_calls", CASES[along], Subject(made, CPU))


@pytest.fixture(autouse=True)
def simulated() -> Any:
    with simulator.simulating():
        yield


@pytest.mark.parametrize("along", CASES)
def test_an_offset_of_32_bits_is_found(along: str) -> None:
    judged(of_rows, along)
    with pytest.raises(Violation, match="index overflow in kernel copy_row"):
        judged(narrow, along)


def test_an_offset_of_32_bits_is_found_in_a_mode_of_one_token() -> None:
    with pytest.raises(Violation, match="index overflow in kernel copy_row"):
        judged(narrow, "tokens", bounds={"a token": one_token_each})


def test_an_offset_too_large_in_the_smallest_call_alone_hides_no_other() -> None:
    with simulator.simulating(index_bits=15), pytest.raises(simulator.IndexOverflow) as caught:
        narrow_behind_a_constant(torch.ones(1, 1030, 32))
    assert "copy_one" in str(caught.value)
    with pytest.raises(Violation, match="index overflow in kernel copy_row"):
        judged(narrow_behind_a_constant, "tokens")


def test_an_offset_in_a_tile_may_have_32_bits() -> None:
    # The law's first call has so many bits, and its other calls have more.
    with simulator.simulating(index_bits=15), pytest.raises(simulator.IndexOverflow):
        of_tiles(torch.ones(1, 1030, 32))
    judged(of_tiles, "tokens")


def test_many_programs_on_the_second_axis_are_found() -> None:
    judged(on_the_first_axis, "pack")
    judged(on_the_second_axis, "tokens")
    with pytest.raises(Violation, match="grid too large in kernel do_nothing"):
        judged(on_the_second_axis, "pack")
    judged(by_tokens_on_the_second_axis, "rows")
    with pytest.raises(Violation, match="grid too large in kernel do_nothing"):
        judged(by_tokens_on_the_second_axis, "tokens")


def test_only_adapters_of_triton_kernels_have_the_law() -> None:
    others = Adapter({"cumsum": {"some": of_rows}})
    assert "large_calls" not in scope.laws(others, "cumsum", "some")


Call = tuple[int, int, int]


def of_pages(splits: int, queries_of_a_key: int) -> list[Call]:
    """Sequences, queries that share a key, and splits, of each call of a case with two rows."""
    calls: list[Call] = []

    def paged(
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        *,
        cu_seqlens: Tensor | None = None,
        num_splits: int = 1,
    ) -> Tensor:
        heads = k_pages.shape[2]
        calls.append((len(lengths), q.shape[2] // heads, num_splits))
        copied(torch.zeros(len(lengths) * num_splits, heads, 32), wide=False)
        return torch.zeros_like(q)

    one = Implementation(paged, forward_only=True, bounds={"one query, and keys": one_query})
    dims = {"B": 2, "G": 2, "R": queries_of_a_key, "K": 16, "V": 16, "C": 16}
    options = {"num_splits": splits}
    case = Case.of("paged_attention", "some", dims, (1,), options=options)
    made = Adapter({"paged_attention": {"some": one}}, triton=True)
    judge("large_calls", case, Subject(made, CPU))
    return calls


def test_parts_of_a_sequence_that_a_call_allocates_are_large_too() -> None:
    assert of_pages(splits=1, queries_of_a_key=1) == [(200, 1, 1)]
    with pytest.raises(Violation, match="index overflow in kernel copy_row"):
        of_pages(splits=9, queries_of_a_key=1)


def test_heads_share_keys_where_those_of_the_drawn_case_do() -> None:
    assert of_pages(splits=1, queries_of_a_key=3) == [(200, 2, 1)]
