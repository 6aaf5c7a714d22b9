"""Prefix sums of gates, and the tree of their gradient against sums over pairs."""

import math

import pytest
import torch
from torch import Tensor

from kernels.softmax.gates import _BLOCK, SHUT, add_levels, cumulative_gates, levels

SPAN = 4


def _ends(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0)


@pytest.mark.parametrize("packed", [False, True])
def test_sums_of_gates_keep_48_bits(packed: bool, device: torch.device) -> None:
    tokens = 2 * _BLOCK + 7
    lengths = (_BLOCK + 1, 0, _BLOCK + 6) if packed else (tokens,)
    generator = torch.Generator().manual_seed(0)
    g = -torch.rand(1 if packed else 2, tokens, 3, generator=generator) * 50
    g[:, 3] = SHUT.value
    g[:, 5::400] = -math.inf
    g[:, 6] = torch.nextafter(torch.tensor(SHUT.value), torch.tensor(-math.inf))
    ends = _ends(lengths, device) if packed else None
    leading, rest, shut_count = cumulative_gates(g.to(device), ends)
    shut = g < SHUT.value
    want = [
        (x.cumsum(1).transpose(1, 2) * (1 / math.log(2)), s.int().cumsum(1).transpose(1, 2))
        for x, s in zip(
            g.double().masked_fill(shut, 0.0).split(lengths, 1), shut.split(lengths, 1), strict=True
        )
    ]
    total = torch.cat([x for x, _ in want], 2)
    assert torch.equal(leading.cpu(), total.float())
    error = (leading.double() + rest.double()).cpu() - total
    assert (error.abs() <= total.abs() * 2.0**-47).all()
    assert torch.equal(shut_count.cpu(), torch.cat([n for _, n in want], 2).int())


@pytest.mark.parametrize(
    ("batch", "queries", "keys"),
    [
        (2, (45,), (45,)),
        (1, (9,), (37,)),
        (1, (37,), (21,)),
        (0, (5, 0, 33), (16, 3, 25)),
        (0, (17,), (0,)),
        (0, (13, 1), (4, 5)),
    ],
)
def test_a_gate_gets_the_pairs_on_its_two_sides(
    batch: int, queries: tuple[int, ...], keys: tuple[int, ...], device: torch.device
) -> None:
    """Without a batch sequences are packed."""
    count = levels(max(keys), SPAN)
    generator = torch.Generator().manual_seed(0)

    def draw(number: int, tokens: int) -> Tensor:
        shape = number, max(batch, 1), 2, tokens
        # The sum of a block leaves float32's digits.
        return torch.randint(-(2**24), 2**24, shape, generator=generator).float()

    parts = draw(1 + count, sum(keys))
    rows, columns = draw(count, sum(queries)), draw(count, sum(keys))
    ends = (None, None) if batch else (_ends(queries, device), _ends(keys, device))
    got = add_levels(parts.to(device), rows.to(device), columns.to(device), SPAN, *ends)
    want = parts[0].double()
    first_q = first_k = 0
    for length_q, length_k in zip(queries, keys, strict=True):
        shift = length_k - length_q
        for level in range(count):
            half = 1 << level
            for t in range(length_k):
                block = t // SPAN // half * half
                begin, end = block * SPAN, (block + half) * SPAN
                if block // half % 2:
                    seeing = [p - shift for p in range(t, min(end, length_k)) if p >= shift]
                    of = rows[level, :, :, first_q:][:, :, seeing]
                else:
                    of = columns[level, :, :, first_k:][:, :, begin:t]
                want[:, :, first_k + t] += of.double().sum(-1).float()
        first_q, first_k = first_q + length_q, first_k + length_k
    assert torch.equal(got.cpu(), want.transpose(1, 2))


def test_a_tree_is_as_high_as_it_has_to_be() -> None:
    assert levels(0, SPAN) == 0
    for blocks in range(1, 70):
        for longest in (SPAN * blocks - SPAN + 1, SPAN * blocks):
            assert 2 ** levels(longest, SPAN) >= blocks > 2 ** (levels(longest, SPAN) - 1)
