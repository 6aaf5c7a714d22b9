"""Weights by hand at scale 1: with q = 1 a key log a weighs a; pages hold two rows each."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

both_forms = both_forms_of(reference.paged_attention)
NAN = math.nan


def pages(*each: tuple[float, float]) -> Tensor:
    return rows(*each)[:, :, None, None]


KEYS = pages((5, NAN), (1, 2), (NAN, NAN)).log()
VALUES = pages((40, NAN), (8, 16), (NAN, NAN))
TABLE = torch.tensor([[1, 0, -1]])


def one(*numbers: float) -> Tensor:
    return rows(*numbers)[None, :, None, None]


@both_forms
def test_pages_are_read_in_the_order_of_the_table_by_hand(form: Form) -> None:
    o, lse = form(one(1), KEYS, VALUES, TABLE, torch.tensor([3]), scale=1.0, return_lse=True)
    torch.testing.assert_close(o, one((8 + 32 + 200) / 8), rtol=1e-15, atol=0)
    torch.testing.assert_close(lse, rows(math.log(8))[None, None], rtol=1e-15, atol=0)


@both_forms
def test_queries_are_the_last_tokens_by_hand(form: Form) -> None:
    o, _ = form(one(1, 1), KEYS, VALUES, TABLE, torch.tensor([3]), scale=1.0, causal=True)
    torch.testing.assert_close(o, one(40 / 3, 30), rtol=1e-15, atol=0)


@both_forms
def test_what_is_left_of_the_window_is_not_read_by_hand(form: Form) -> None:
    keys, values = KEYS.clone(), VALUES.clone()
    keys[1, 0], values[1, 0] = NAN, NAN
    o, _ = form(one(1), keys, values, TABLE, torch.tensor([3]), scale=1.0, causal=True, window=2)
    torch.testing.assert_close(o, one((2 * 16 + 5 * 40) / 7), rtol=1e-15, atol=0)


@both_forms
def test_a_query_of_a_tree_sees_its_ancestors_by_hand(form: Form) -> None:
    """Two children of one root: the second does not see the first."""
    parents = torch.tensor([[-1, 0, 0]])
    keys, values = pages((1, 2), (3, 4)).log(), pages((1, 1), (0, 5))
    given = (one(1, 1, 1), keys, values, torch.tensor([[0, 1]]), torch.tensor([4]))
    o, _ = form(*given, scale=1.0, causal=True, parents=parents)
    torch.testing.assert_close(o, one(1, 3 / 6, (1 + 2 + 20) / 7), rtol=1e-15, atol=0)


@both_forms
def test_scales_multiply_their_rows_by_hand(form: Form) -> None:
    keys = torch.tensor([1, 2], dtype=torch.int8).view(1, 2, 1, 1)
    values = torch.tensor([3, 4], dtype=torch.int8).view(1, 2, 1, 1)
    scale = rows(math.log(2), math.log(3) / 2).view(1, 2, 1)
    o, _ = form(
        one(1), keys, values, torch.tensor([[0]]), torch.tensor([2]),
        scale=1.0, k_scale=scale, v_scale=rows(5, 10).view(1, 2, 1),
    )  # fmt: skip
    torch.testing.assert_close(o, one((2 * 15 + 3 * 40) / 5), rtol=1e-15, atol=0)


@both_forms
def test_a_sequence_without_keys_gets_zero_and_no_weight(form: Form) -> None:
    given = (one(1, 1), KEYS, VALUES, TABLE, torch.tensor([0]))
    o, lse = form(*given, causal=True, return_lse=True)
    assert torch.equal(o, one(0, 0))
    assert (lse == -math.inf).all()
    o, lse = form(*given, sink=rows(3), return_lse=True)
    assert torch.equal(o, one(0, 0))
    assert (lse == 3).all()


@both_forms
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 3},
        {"window": 2, "softcap": 2.0},
        {"causal": True, "alibi_slopes": draw(5, 6).abs(), "sink": draw(4, 6)},
    ],
)
def test_it_is_attention_to_the_gathered_rows(form: Form, options: dict[str, Any]) -> None:
    """Arguments for packed sequences whose pages are shared and permuted."""
    k, v = draw(1, 5, 3, 2, 4), draw(2, 5, 3, 2, 7)
    table = torch.tensor([[3, 1, 4], [3, 0, -1]])
    lengths, bounds = torch.tensor([7, 4]), torch.tensor([0, 2, 5])
    q = draw(0, 1, 5, 6, 4)
    o, lse = form(
        q, k, v, table, lengths, cu_seqlens=bounds, num_splits=3, return_lse=True, **options
    )
    keys, values = (
        torch.cat([x[[3, 1, 4]].flatten(0, 1)[:7], x[[3, 0]].flatten(0, 1)[:4]])[None]
        for x in (k, v)
    )
    want_o, want_lse = reference.attention(
        q, keys, values, cu_seqlens=bounds, cu_seqlens_k=torch.tensor([0, 7, 11]),
        return_lse=True, **options,
    )  # fmt: skip
    torch.testing.assert_close(o, want_o, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, want_lse, rtol=1e-13, atol=1e-13)


GOOD: dict[str, Any] = {
    "q": draw(0, 2, 3, 6, 4),
    "k_pages": draw(1, 5, 4, 2, 4),
    "v_pages": draw(2, 5, 4, 2, 7),
    "block_table": torch.tensor([[3, 1], [0, -1]]),
    "lengths": torch.tensor([5, 4]),
}
EIGHT = {name: GOOD[name].to(torch.int8) for name in ("k_pages", "v_pages")}
TREE = torch.tensor([[-1, 0, 1], [-1, 0, 1]])
BAD: dict[str, Bad] = {
    "page past the pool": (
        {"block_table": torch.tensor([[3, 5], [0, -1]])},
        ValueError,
        "block_table: page 5 of sequence 0, expected 0 to 4",
    ),
    "page of a block that is needed": (
        {"lengths": torch.tensor([5, 5])},
        ValueError,
        "block_table: page -1 of sequence 1, expected 0 to 4",
    ),
    "table too short": (
        {"lengths": torch.tensor([5, 9])},
        ValueError,
        "block_table: 2 blocks, expected 3 for the 9 tokens of sequence 1, with 4 to a page",
    ),
    "negative length": (
        {"lengths": torch.tensor([5, -1])},
        ValueError,
        "lengths: -1 of sequence 1, expected at least 0",
    ),
    "lengths of other sequences": (
        {"lengths": torch.tensor([5])},
        ValueError,
        "lengths: int64[1], expected [N] with N=2",
    ),
    "lengths that do not fit the boundaries": (
        {"q": GOOD["q"][:1], "cu_seqlens": torch.tensor([0, 1, 2, 3])},
        ValueError,
        "block_table: int64[2, 2], expected [N, M] with N=3",
    ),
    "page dtype": ({"v_pages": GOOD["v_pages"].float()}, TypeError, "v_pages: torch.float32"),
    "8 bits without scale": (EIGHT, ValueError, "k_scale: None, expected the scales"),
    "scale of another granularity": (
        {**EIGHT, "k_scale": draw(0, 5, 4), "v_scale": draw(0, 5, 4, 2)},
        ValueError,
        "k_scale: float64[5, 4], expected [P, C, G] with P=5, C=4, G=2",
    ),
    "splits": ({"num_splits": 0}, ValueError, "num_splits: 0, expected at least 1"),
    "tree that is not causal": ({"parents": TREE}, ValueError, "parents: given with causal=False"),
    "parent after its child": (
        {"parents": TREE + 1, "causal": True},
        ValueError,
        "parents: 0 of query 0, expected -1 to -1",
    ),
    "tree longer than its keys": (
        {"parents": TREE, "causal": True, "lengths": torch.tensor([5, 2])},
        ValueError,
        "parents: 3 queries of a sequence of 2 keys",
    ),
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, **GOOD)
