"""The comparison fails exactly where it must."""

import math

import pytest
import torch
from torch import Tensor

from properties.verdict import Budget, compare
from properties.verdict.excess import Excess

inf, nan = math.inf, math.nan


def judged(got: list[float], want: list[float], allowed: float = 0.1) -> bool:
    x, y = torch.tensor(got), torch.tensor(want, dtype=torch.float64)
    return compare("o", x, y, Budget(torch.full_like(y, allowed), "test")).passed


def test_an_error_within_its_budget_passes_and_one_beyond_it_fails() -> None:
    assert judged([1.09, 2.0], [1.0, 2.0])
    assert not judged([1.11, 2.0], [1.0, 2.0])


@pytest.mark.parametrize("want", [0.0, nan, inf, -inf])
def test_nan_never_passes(want: float) -> None:
    assert not judged([nan, 0.0], [want, 0.0], allowed=1e30)


def test_nan_in_the_budget_fails() -> None:
    assert not judged([1.0], [1.5], allowed=nan)


@pytest.mark.parametrize(
    ("got", "want", "passes"),
    [
        (inf, inf, True),
        (-inf, inf, False),
        (1.0, inf, False),
        (inf, 1.0, False),
        (-inf, -inf, True),
    ],
)
def test_infinities_match_in_place_and_sign(got: float, want: float, passes: bool) -> None:
    assert judged([got], [want], allowed=1e30) == passes


def test_a_number_within_its_budget_of_overflow_may_overflow() -> None:
    want = torch.tensor([65519.0, 65600.0, -65600.0, 60000.0], dtype=torch.float64)
    budget = Budget(torch.full_like(want, 20.0), "test")
    got = torch.tensor([inf, inf, -inf, 60000.0], dtype=torch.float16)
    assert compare("o", got, want, budget).passed
    assert not compare("o", -got, want, budget).passed
    got[3] = inf
    assert compare("o", got, want, budget).wrong.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("want", "allowed", "infinite", "largest"),
    [
        # 65504 is the largest number of float16, and 65520 the smallest that rounds to inf.
        (65504.0, 0.0, False, True),
        (65504.0, 16.0, True, True),
        (65519.0, 0.5, False, False),
        (65519.0, 15.0, True, True),
        (65520.0, 0.0, True, False),
        (65520.0, 16.0, True, True),
        (84912.0, 100.0, True, False),
        (84912.0, 20000.0, True, True),
    ],
)
def test_a_number_near_the_range_may_be_infinite_or_within_its_budget(
    want: float, allowed: float, infinite: bool, largest: bool
) -> None:
    for sign in (1.0, -1.0):
        y = torch.tensor([sign * want], dtype=torch.float64)
        budget = Budget(torch.full_like(y, allowed), "test")
        for got, passes in ((inf, infinite), (65504.0, largest), (-inf, False), (nan, False)):
            x = torch.tensor([sign * got], dtype=torch.float16)
            assert compare("o", x, y, budget).passed == passes, (sign * got, sign * want)


def test_a_budget_that_reaches_both_ends_of_the_range_allows_both_infinities() -> None:
    want = torch.tensor([2236.0, 2236.0, 2236.0, -60000.0], dtype=torch.float64)
    budget = Budget(torch.tensor([67756.0, 67755.0, 63284.0, 1e9], dtype=torch.float64), "test")
    for got, wrong in (
        (inf, [False, False, False, False]),
        (-inf, [False, True, True, False]),
        (nan, [True, True, True, True]),
    ):
        x = torch.full((4,), got, dtype=torch.float16)
        assert compare("o", x, want, budget).wrong.tolist() == wrong


def test_bit_for_bit_the_largest_number_is_not_infinite() -> None:
    want = torch.tensor([65504.0, 65519.0, 65520.0], dtype=torch.float64)
    got = torch.tensor([65504.0, 65504.0, inf], dtype=torch.float16)
    assert compare("o", got, want, None).passed
    got[0] = inf
    assert compare("o", got, want, None).wrong.tolist() == [True, False, False]


def test_exact_comparison_rounds_the_oracle_and_takes_both_zeros_for_equal() -> None:
    want = torch.tensor([1 + 2.0**-9, 0.0], dtype=torch.float64)
    got = torch.tensor([1.0, -0.0], dtype=torch.bfloat16)
    assert compare("o", got, want, None).passed
    assert not compare("o", got + 2.0**-7, want, None).passed


def test_a_wrong_shape_is_named() -> None:
    comparison = compare("o", torch.zeros(2, 3), torch.zeros(3, 2).double(), None)
    assert not comparison.passed
    assert comparison.reason == "shape [2, 3], expected [3, 2]"
    # More than any memory has.
    got = torch.zeros(()).expand(1 << 40)
    assert compare("o", got, torch.zeros(()).double(), None).reason.endswith("expected []")


def test_empty_results_pass() -> None:
    comparison = compare("o", torch.zeros(0, 3), torch.zeros(0, 3).double(), None)
    assert comparison.passed
    assert comparison.worst is None


def test_the_worst_element_is_the_largest_excess_or_a_wrong_infinity() -> None:
    want = torch.zeros(2, 3, dtype=torch.float64)
    allowed = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.1, 1.0]], dtype=torch.float64)
    got = torch.tensor([[0.0, 0.9, 0.0], [0.0, 0.2, 0.0]])
    comparison = compare("o", got, want, Budget(allowed, "test"))
    assert comparison.worst == (1, 1)
    assert comparison.ratio == pytest.approx(2.0)
    got[0, 2] = nan
    assert compare("o", got, want, Budget(allowed, "test")).worst == (0, 2)


def lossy(error: Tensor, want: Tensor) -> float:
    sigma = torch.ones_like(want)
    budget = Budget(6 * sigma, "test", sigma, loss_limit=0.8)
    return compare("o", (want + error).float(), want, budget).loss


def test_the_mean_error_shows_a_loss_that_no_element_shows() -> None:
    generator = torch.Generator().manual_seed(0)
    error, want = torch.randn(2, 50, 20, dtype=torch.float64, generator=generator)
    assert lossy(0.5 * error, want) < 1
    assert 1 < lossy(1.2 * error, want) < 2


def test_a_rounding_shared_by_a_row_is_no_loss() -> None:
    want = torch.randn(50, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert lossy(1.5 * want, want) < 1e-6


def _excess(got: list[float], want: list[float], allowed: Budget | None) -> Excess:
    x, y = torch.tensor(got), torch.tensor(want, dtype=torch.float64)
    return compare("o", x, y, allowed).excess


def _budget(*allowed: float) -> Budget:
    return Budget(torch.tensor(allowed, dtype=torch.float64), "test")


def test_an_excess_says_in_few_words_how_far_a_result_is_off() -> None:
    slight = _excess([1.5, 2.0], [1.0, 2.0], _budget(0.25, 0.25))
    grave = _excess([1.5, 602.0], [1.0, 2.0], _budget(0.25, 0.5))
    leaks = _excess([1.0, 2.0], [1.0, 0.0], _budget(0.25, 0.0))
    bits = _excess([1.0, 2.0], [1.0, 2.5], None)
    lost = _excess([1.0, nan], [1.0, 2.0], _budget(0.25, 0.25))
    other = compare("o", torch.ones(2), torch.ones(3).double(), None).excess
    assert [e.told("o") for e in (slight, grave, leaks, bits, lost, other)] == [
        "up to 2 x its budget",
        "up to 1.2e+03 x its budget",
        "up to 1 of its largest at budget 0",
        "up to 0.2 of its largest at budget 0",
        "not finite",
        "of another shape",
    ]
    assert bits < leaks < slight < grave < lost < other
    assert lost.told("dx") == "o not finite"


def test_an_excess_is_of_wrong_elements_alone_and_a_finite_number() -> None:
    assert _excess([inf, 3.0], [inf, 1.0], _budget(0.0, 1.0)).ratio == 2.0
    assert _excess([1e300, 0.0], [0.0, 0.0], _budget(1e-300, 1.0)).beyond == "not finite"
    tiny = _excess([1e30, 0.0], [0.0, 0.0], _budget(5e-324, 1.0))
    assert tiny.ratio == torch.finfo(torch.float64).max
    assert _excess([1.0, 0.0], [1.0, 0.5], _budget(0.25, nan)).of_largest == 0.5


def test_a_systematic_loss_is_told_by_its_limit() -> None:
    want = torch.ones(1000, dtype=torch.float64)
    sigma = torch.full_like(want, 0.01)
    budget = Budget(torch.ones_like(want), "test", sigma, loss_limit=1.0)
    error = torch.tensor([0.04, -0.04]).repeat(500)
    assert compare("o", want + error, want, budget).excess.ratio == pytest.approx(4.0)
