"""A picture shows where a result is wrong."""

from collections.abc import Mapping
from typing import Any

import torch

from properties.cases.case import Case
from properties.verdict.compare import Budget, Comparison, compare
from properties.verdict.picture import Picture, Strip, picture


def case(*lengths: int, packed: bool = False) -> Case:
    dims = {"B": 1 if packed else 2, "H": 3, "D": 2}
    return Case(
        op="l2norm", mode="fused", dtype="float32", dims=dims, lengths=lengths, packed=packed
    )


def comparison(*shape: int, errors: Mapping[Any, float]) -> Comparison:
    """A comparison of zeros with these errors, where 1 is allowed."""
    got = torch.zeros(shape)
    for index, error in errors.items():
        got[index] = error
    budget = Budget(torch.ones(shape, dtype=torch.float64), "one")
    return compare("y", got, torch.zeros(shape), budget)


def test_tokens_go_across_and_each_head_has_its_strip() -> None:
    errors = {(0, 1, 0, 0): 2.0, (0, 3, 2, 1): 20.0, (1, 0, 2, 0): 2e4, (1, 2, 2, 0): float("nan")}
    found = picture(comparison(2, 4, 3, 2, errors=errors), case(4), ("B", "T", "H", "D"))
    assert found == Picture(
        output="y",
        across="4 tokens",
        down="2 dims",
        cuts=(),
        strips=(
            Strip("sequence 0, head 0", ("0100", "0000")),
            Strip("sequence 0, head 1", ("0000", "0000")),
            Strip("sequence 0, head 2", ("0000", "0002")),
            Strip("sequence 1, head 0", ("0000", "0000")),
            Strip("sequence 1, head 1", ("0000", "0000")),
            Strip("sequence 1, head 2", ("3040", "0000")),
        ),
        more=0,
    )


def test_packed_sequences_are_cut_at_their_ends() -> None:
    found = picture(
        comparison(1, 8, 3, errors={(0, 7, 1): 2.0}), case(2, 0, 6, packed=True), ("B", "T", "H")
    )
    assert found is not None
    assert found.cuts == (0.25, 0.25)
    assert found.strips == (Strip("", ("00000000", "00000001", "00000000")),)
    assert (found.across, found.down) == ("8 tokens", "3 heads")


def test_one_wrong_element_of_a_large_result_is_seen() -> None:
    errors = {(0, 999, 36, 99): 2.0}
    dims = ("B", "T", "H", "D")
    found = picture(comparison(1, 1000, 40, 100, errors=errors), case(1000), dims)
    assert found is not None
    (strip,) = found.strips
    assert strip.title == "sequence 0, head 36"
    assert strip.rows == (*["0" * 96] * 15, "0" * 95 + "1")
    assert found.more == 39


def test_a_state_has_no_tokens_and_a_scalar_no_dims() -> None:
    states = picture(comparison(1, 1, 2, 3, errors={(0, 0, 1, 2): 2.0}), case(1), tuple("NHKV"))
    assert states is not None
    assert (states.across, states.down) == ("3 value dims", "2 key dims")
    assert states.strips[0].rows == ("000", "001")
    alone = picture(comparison(3, errors={(1,): 2.0}), case(1), ("H",))
    assert alone is not None
    assert alone.strips == (Strip("", ("010",)),)
    scalar = picture(comparison(errors={(): 2.0}), case(1), ())
    assert scalar is not None
    assert scalar.strips == (Strip("", ("1",)),)


def test_a_correct_result_has_no_picture() -> None:
    assert picture(comparison(1, 2, errors={}), case(2), ("B", "T")) is None
    assert picture(comparison(1, 0, errors={}), case(0), ("B", "T")) is None
    shapes = compare("y", torch.zeros(2), torch.zeros(3), None)
    assert picture(shapes, case(2), ("T",)) is None
