"""Bytes and operations, counted by hand."""

import pytest
import torch

from kernels.bench.problems import PROBLEMS
from kernels.bench.shapes import Shape

# B, T, H, K, V: 2 · 3 · 5 = 30 queries of 4 channels, values of 6.
SHAPE = Shape(2, 3, 5, 4, 6)
# Six tokens in sequences of other lengths.
PACKED = Shape(2, 3, 5, 4, 6, "packed")
STEP = Shape(2, 1, 5, 4, 6, "decode")


@pytest.mark.parametrize(
    ("op", "forward", "both"),
    [
        # 30 vectors of 4, 4, 6, 6 channels in 2 bytes; then 4, 4, 6, 6 and 4, 4, 6 again.
        ("linear_attn", 30 * 20 * 2, 30 * 54 * 2),
        # Gates: 30 vectors of 4 channels in 4 bytes, once, and twice again.
        ("gla", 30 * 20 * 2 + 480, 30 * 54 * 2 + 3 * 480),
        # As for linear_attn, then o besides, and a lse of 30 times 4 bytes, twice.
        ("attention", 30 * 20 * 2, 30 * 60 * 2 + 240),
        # 30 vectors of 6 channels, twice; B and C of 6 tokens; 30 steps in 4 bytes. Then 3 times
        # 6 channels, B, C and their gradients, and steps and theirs.
        ("mamba2", (360 + 48) * 2 + 120, (900 + 144) * 2 + 360),
        # 30 vectors of 4 channels in, 30 out, and two tables of 3 times 2.
        ("rotary_embedding", (120 + 120 + 12) * 2, (120 + 120 + 12) * 4),
        # And 3 positions of 8 bytes for each of 6 tokens.
        ("multiaxis_rotary", (120 + 120 + 12) * 2 + 144, (120 + 120 + 12) * 4 + 288),
    ],
)
def test_bytes_are_those_counted_by_hand(op: str, forward: int, both: int) -> None:
    moved = PROBLEMS[op].moved
    assert moved(SHAPE, 2, False) == forward
    assert moved(SHAPE, 2, True) == both


@pytest.mark.parametrize(
    ("op", "forward", "both"),
    [
        # 30 tokens, states of 24: k vᵀ added, qᵀ S: 2 products and 2 sums for each element.
        ("linear_attn", 30 * 24 * 4, 30 * 24 * 14),
        ("gla", 30 * 24 * 5, 30 * 24 * 17),
        # 10 heads of 1 + 2 + 3 pairs. Forward 4 + 6 products, backward 4 + 6, then 4, 4 and 6.
        ("attention", 60 * 2 * 10, 60 * 2 * 34),
        # Two scores, two sums of values.
        ("parallax", 60 * 2 * 20, 60 * 2 * 68),
        # 30 vectors of two pairs.
        ("rotary_embedding", 60 * 6, 120 * 6),
    ],
)
def test_operations_are_those_counted_by_hand(op: str, forward: int, both: int) -> None:
    operations = PROBLEMS[op].operations
    assert operations(SHAPE, False) == forward
    assert operations(SHAPE, True) == both


def test_tensors_are_counted_where_no_formula_is_given() -> None:
    # 6 tokens of 20 channels: x and o in 2 bytes, g in 4; then these, and the gradients of x and g.
    hgrn = PROBLEMS["hgrn"]
    assert hgrn.bytes(SHAPE, torch.bfloat16, False) == 120 * 8
    assert hgrn.bytes(SHAPE, torch.bfloat16, True) == 120 * (16 + 6)


def test_means_are_moved_instead_of_tokens() -> None:
    shape = Shape(2, 128, 5, 4, 6)
    once = 2 * 130 * 5 * 4 * 2
    assert PROBLEMS["mean_pooling"].bytes(shape, torch.bfloat16, False) == once
    assert PROBLEMS["mean_pooling"].bytes(shape, torch.bfloat16, True) == 2 * once


def test_a_step_of_decoding_reads_and_writes_the_state() -> None:
    # 10 vectors of 20 channels in 2 bytes, and 10 states of 24 in 4, twice.
    assert PROBLEMS["linear_attn"].moved(STEP, 2, False) == 10 * 20 * 2 + 2 * 10 * 24 * 4


def test_an_append_reads_keys_and_values_and_writes_them() -> None:
    assert PROBLEMS["cache_append"].moved(SHAPE, 2, False) == 2 * 30 * 10 * 2


def test_packed_sequences_see_their_own_pairs_and_the_longest_one_has_a_table() -> None:
    first, second = PACKED.lengths
    assert {first, second} == {1, 5} or {first, second} == {2, 4}
    pairs = first * (first + 1) // 2 + second * (second + 1) // 2
    assert PROBLEMS["attention"].operations(PACKED, False) == 5 * pairs * 2 * 10
    table = max(first, second) * 4
    assert PROBLEMS["rotary_embedding"].moved(PACKED, 2, False) == (120 + 120 + table) * 2
    assert PROBLEMS["gla"].moved(PACKED, 2, True) == PROBLEMS["gla"].moved(SHAPE, 2, True)
