"""By hand, for T5's 32 buckets up to 128 tokens: bucket 8 + m begins at 8 · 2^(m/2) tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import draw

# The first distance of each bucket: 8 · 2^(m/2) is 11.3, 22.6, 45.3 and 90.5 for odd m.
FIRST = (*range(9), 12, 16, 23, 32, 46, 64, 91)
# 16 · 8^(m/16) rounded up, m from 0 on.
FIRST_CAUSAL = (*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113)


def _row(distances: int, **options: Any) -> list[int]:
    """Buckets of one query, from its own key backwards."""
    row: list[int] = reference.relative_buckets(1, distances, **options)[0].flip(0).tolist()
    return row


@pytest.mark.parametrize(
    ("bidirectional", "first"), [(True, FIRST), (False, FIRST_CAUSAL)], ids=["both", "causal"]
)
def test_buckets_of_t5_by_hand(bidirectional: bool, first: tuple[int, ...]) -> None:
    row = _row(300, bidirectional=bidirectional)
    bounds = [*first, 300]
    want = [b for b, n in enumerate(bounds[:-1]) for _ in range(bounds[b + 1] - n)]
    assert row == want
    assert len(first) == (16 if bidirectional else 32)


def test_keys_after_the_query_by_hand() -> None:
    both = reference.relative_buckets(12, 12)
    assert both[0].tolist() == [0, *range(17, 25), 24, 24, 24]
    assert both[11].tolist() == [8, 8, 8, 8, *range(7, -1, -1)]
    causal = reference.relative_buckets(3, 5, bidirectional=False)
    assert causal.tolist() == [[2, 1, 0, 0, 0], [3, 2, 1, 0, 0], [4, 3, 2, 1, 0]]


def test_a_border_that_is_an_integer_begins_a_bucket() -> None:
    """E = 3, L = 4 and 27 tokens: bucket 5 begins at 3 · 9^(2/4) = 9, where 4 log 3 / log 9 = 2."""
    row = _row(12, buckets=7, max_distance=27, bidirectional=False)
    assert row == [0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]


@pytest.mark.parametrize("buckets", [2, 3, 7, 32])
@pytest.mark.parametrize("max_distance", [17, 128, 1000])
def test_buckets_are_those_of_the_formula(buckets: int, max_distance: int) -> None:
    """Compare in float64 away from the borders, where the logarithm would have to be exact."""
    n = torch.arange(1, 1200, dtype=torch.float64)
    E = buckets // 2
    steps = (buckets - E) * torch.log(n / E) / torch.log(torch.tensor(max_distance / E).double())
    want = torch.where(n < E, n, (E + steps.floor()).clamp(max=buckets - 1)).long()
    got = torch.tensor(_row(1200, buckets=buckets, max_distance=max_distance, bidirectional=False))
    clear = (steps - steps.round()).abs() > 1e-12
    assert torch.equal(got[1:][clear], want[clear])
    assert got[0] == 0


@pytest.mark.parametrize(("T_q", "T_k"), [(5, 5), (2, 6), (6, 2), (0, 3), (3, 0)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_is_a_table_by_distance(T_q: int, T_k: int, bidirectional: bool) -> None:
    table = draw(0, 3, 8)
    options: Any = {"max_distance": 5, "bidirectional": bidirectional}
    bias = reference.relative_bias(table, T_q, T_k, **options)
    assert bias.shape == (1, 3, T_q, T_k)
    buckets = reference.relative_buckets(T_q, T_k, buckets=8, **options)
    for i in range(T_q):
        for j in range(T_k):
            assert torch.equal(bias[0, :, i, j], table[:, buckets[i, j]])


def test_the_table_learns_through_attention() -> None:
    q, k, v = draw(1, 2, 3, 2, 4), draw(2, 2, 5, 2, 4), draw(3, 2, 5, 2, 4)

    def function(table: Tensor) -> Tensor:
        bias = reference.relative_bias(table, 3, 5, max_distance=4)
        return reference.attention(q, k, v, scale=1.0, bias=bias)[0]

    assert torch.autograd.gradcheck(function, draw(0, 2, 8).requires_grad_())


def test_decoding_with_all_keys_has_the_bias_of_the_last_rows() -> None:
    table = draw(0, 2, 32)
    whole = reference.relative_bias(table, 40, 40)
    assert torch.equal(reference.relative_bias(table, 3, 40), whole[:, :, 37:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": -1}, "queries: -1"),
        ({"keys": -1}, "keys: -1"),
        ({"buckets": 7}, "buckets: 7, expected an even number from 4 on"),
        ({"buckets": 2}, "buckets: 2, expected an even number from 4 on"),
        ({"buckets": 1, "bidirectional": False}, "buckets: 1, expected at least 2"),
        ({"max_distance": 8}, "max_distance: 8, expected more than 8"),
    ],
)
def test_bad_sizes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reference.relative_buckets(**{"queries": 2, "keys": 3, **options})


def test_a_bad_table_is_named() -> None:
    with pytest.raises(ValueError, match="table: float64"):
        reference.relative_bias(draw(0, 8), 2, 2)
    with pytest.raises(ValueError, match="buckets: 3"):
        reference.relative_bias(draw(0, 2, 3), 2, 2)
