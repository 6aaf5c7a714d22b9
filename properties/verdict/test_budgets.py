"""Budgets follow their formulas, and noise is added where rounding occurs."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from properties.catalogue.telescope import Telescope
from properties.verdict.budgets import (
    allowed_deviations,
    budgets,
    chunk_decay,
    magnitude,
    magnitude_factor,
    rules,
)
from properties.verdict.compare import compare
from properties.verdict.computation import Computation
from properties.verdict.noise import Rounding
from properties.verdict.precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    TF32,
    Precision,
    underflow,
    unit_roundoff,
)
from properties.verdict.sigma import DRAWS, MANY_DRAWS, sigma


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scatter(
    compute: Callable[[], Tensor], precision: Precision, float32_logits: bool = False
) -> Tensor:
    """Root mean square deviation over 200 perturbed runs."""
    exact = compute()
    generator = torch.Generator().manual_seed(0)
    with Rounding(precision, generator, float32_logits=float32_logits):
        runs = [compute() for _ in range(200)]
    return torch.stack([run - exact for run in runs]).square().mean(0).sqrt()


def test_many_runs_allow_what_happens_rarely() -> None:
    # Rounding exchanges the larger of two logits in one run of 60.
    s = torch.tensor([[1.0, 1.0 - 3 * BFLOAT16.unit]], dtype=torch.float64)
    v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    tensors = {"s": 10000 * s.expand(64, 1, 2), "v": v}

    def oracle(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"o": torch.softmax(x["s"] * 1.0, -1) @ x["v"]}

    def refusing(draws: int) -> Tensor:
        """The share of the rows that refuse the other value."""
        how = Computation(precision=BFLOAT16, output_dtypes={"o": torch.bfloat16}, terms=2)
        made = budgets(oracle, tensors, oracle(tensors), how, draws=draws)
        return (made["o"].allowed < 0.9).double().mean()

    assert refusing(DRAWS) > 0.7
    assert refusing(MANY_DRAWS) < 0.3


def test_many_runs_allow_what_a_large_error_multiplies() -> None:
    """Two logits that err by 1 each: their difference is off by 6 in one of 40000 rows."""
    s = torch.tensor([[256.0, 249.0]], dtype=torch.float64)
    tensors = {"s": s, "v": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}

    def oracle(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"o": torch.softmax(x["s"] * 1.0, -1) @ x["v"]}

    want = oracle(tensors)
    six_off = torch.softmax(s + torch.tensor([0.0, 6.0]), -1)[:, 1:] - want["o"]
    how = Computation(precision=BFLOAT16, output_dtypes={"o": torch.bfloat16}, terms=2)
    few, many = (budgets(oracle, tensors, want, how, draws=n)["o"] for n in (DRAWS, MANY_DRAWS))
    assert few.allowed < six_off < many.allowed


def test_outliers_allow_nothing_more_where_the_result_is_linear_in_its_errors() -> None:
    a, b = normal(33, 16), normal(16, 8, seed=1)

    def oracle(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"o": x["a"] @ x["b"]}

    tensors = {"a": a, "b": b}
    how = Computation(precision=BFLOAT16, output_dtypes={"o": torch.float32}, terms=16)
    few, many = (
        budgets(oracle, tensors, oracle(tensors), how, draws=n)["o"].allowed
        for n in (DRAWS, MANY_DRAWS)
    )
    six = 6.1 * 2.0**-8 * (2 * a.square() @ b.square()).sqrt()
    assert (many <= torch.maximum(few, six)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_unit_roundoff_and_underflow_bound_every_rounding(dtype: torch.dtype) -> None:
    x = normal(100_000) * torch.exp2(torch.linspace(-30, 4, 100_000, dtype=torch.float64))
    error = (x.to(dtype).double() - x).abs()
    assert (error <= unit_roundoff(dtype) * x.abs() + underflow(dtype)).all()
    assert (error > 0.9 * unit_roundoff(dtype) * x.abs()).any()


def test_float16_underflow_is_half_its_smallest_number() -> None:
    assert underflow(torch.float16) == FLOAT16.underflow == 2.0**-25


def test_elementwise_noise_is_relative() -> None:
    x = normal(7, 9)
    assert torch.allclose(scatter(lambda: x * x, BFLOAT16), 2.0**-8 * x * x, rtol=0.3)


def test_noise_of_a_product_does_not_cancel_with_it() -> None:
    a = torch.tensor([[3.0, -3.0]], dtype=torch.float64)
    b = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    assert a @ b == 0
    expected = 2.0**-8 * math.sqrt(2 * 18)
    assert float(scatter(lambda: a @ b, BFLOAT16)) == pytest.approx(expected, rel=0.2)


def test_noise_of_a_float32_sum_grows_with_its_terms_and_their_size() -> None:
    x = torch.ones(1, 400, dtype=torch.float64)
    x[:, ::2] = -1
    expected = 2.0**-24 * (math.sqrt(400) + math.sqrt(400) * 400)
    assert float(scatter(lambda: x.sum(1), FLOAT32)) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("name", ["logaddexp", "logsumexp", "log_of_sum"])
def test_noise_of_a_logarithm_of_a_sum_does_not_shrink_where_it_is_0(name: str) -> None:
    x = torch.full((1, 2), -math.log(2), dtype=torch.float64)
    forms = {
        "logaddexp": lambda: torch.logaddexp(x[:, 0], x[:, 1]),
        "logsumexp": lambda: torch.logsumexp(x, 1),
        "log_of_sum": lambda: x.exp().sum(1).log(),
    }
    assert float(forms[name]().abs()) < 1e-15
    assert 0.9 * 2.0**-24 < float(scatter(forms[name], FLOAT32)) < 4 * 2.0**-24


def test_noise_of_softplus_is_relative_to_its_value() -> None:
    x = torch.full((1, 2), -20.0, dtype=torch.float64)

    def softplus() -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    assert float(scatter(softplus, FLOAT32).max()) < 4 * 2.0**-24 * math.exp(-20)


def test_zeros_infinities_views_and_copies_are_not_disturbed() -> None:
    x = torch.tensor([0.0, math.inf, -math.inf, 2.0], dtype=torch.float64)
    with Rounding(FLOAT16, torch.Generator()):
        assert torch.equal((x * 2)[:3], torch.tensor([0.0, math.inf, -math.inf]).double())
        moved = torch.cat([x.flip(0).view(2, 2), -x.expand(2, 4)[:, :2].clone()])
        assert torch.equal(moved[0], torch.tensor([2.0, -math.inf]).double())
        assert torch.equal(torch.where(x > 1, x, 0.0)[3], x[3])


def test_noise_of_float16_is_at_least_its_underflow() -> None:
    x = torch.full((50,), 1e-9, dtype=torch.float64)
    assert torch.allclose(scatter(lambda: x * 1.0, FLOAT16), x * 0 + 2.0**-25, rtol=0.4)
    assert torch.allclose(scatter(lambda: x * 1.0, BFLOAT16), x * 2.0**-8, rtol=0.4)


def test_the_backward_pass_is_disturbed_in_its_own_intermediates() -> None:
    x = normal(6)

    def gradient() -> Tensor:
        leaf = x.clone().requires_grad_()
        leaf.square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    assert (scatter(gradient, BFLOAT16) > 0.3 * 2.0**-8 * gradient().abs()).all()


def test_float32_logits_leave_products_of_stored_numbers_exact() -> None:
    q, k = normal(4, 8).bfloat16().double(), normal(8, 4, seed=1).bfloat16().double()
    weights = normal(4, 4, seed=2)
    assert (scatter(lambda: q @ k, BFLOAT16, True) < 1e-4 * (q.abs() @ k.abs())).all()
    assert (scatter(lambda: weights @ q, BFLOAT16, True) > 2.0**-9 * (weights @ q).abs()).all()


def test_a_row_of_one_key_has_the_error_of_its_sum() -> None:
    logits = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    dp = normal(3, 1)

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad(torch.softmax(logits, -1), logits, dp)
        return found

    generator = torch.Generator().manual_seed(0)
    with Rounding(FLOAT16, generator, float32_logits=True, row_sums=2.0**-11):
        runs = torch.stack([gradient() for _ in range(200)])
    torch.testing.assert_close(runs.square().mean(0).sqrt(), 2.0**-11 * dp.abs(), rtol=0.3, atol=0)
    assert (scatter(gradient, FLOAT16, True) < 2.0**-20).all()


def test_magnitude_takes_every_term_positive_and_leaves_gates() -> None:
    tensors = {"x": torch.tensor([1.0, -2.0]), "g": torch.tensor([-1.0]), "at": torch.tensor([1])}

    def oracle(t: object) -> dict[str, Tensor]:
        assert isinstance(t, dict)
        return {"y": (t["x"] * t["g"].exp()).sum() + 0 * t["at"]}

    Y = magnitude(oracle, tensors, gates=("g",))["y"]
    assert float(Y) == pytest.approx(3 * math.exp(-1))


def test_chunk_decay_is_the_largest_window_of_64_tokens() -> None:
    g = torch.full((1, 200, 1, 2), -0.5, dtype=torch.float64)
    g[0, 10, 0, 1] = -math.inf
    g[0, 20, 0, 1] = -7.0
    assert chunk_decay({"g": g}, ("g", "gv")) == pytest.approx(0.5 * 63 + 7)
    assert chunk_decay({}, ("g",)) == 0


def test_decays_of_sums_that_are_added_as_a_tree_stay_within_the_factor() -> None:
    worst = 0.0
    for seed in range(100):
        g = -torch.rand(64, 8, generator=torch.Generator().manual_seed(seed))
        G, step = g, 1
        while step < 64:
            G = torch.cat([G[:step], G[step:] + G[:-step]])
            step *= 2
        exact = g.double().cumsum(0)
        want = (exact[:, None] - exact).exp()
        error = ((G[:, None] - G).exp().double() - want).abs() / want
        past = error[torch.ones(64, 64, dtype=torch.bool).tril()]
        decay = chunk_decay({"g": g.double()[None]}, ("g",))
        worst = max(worst, float(past.max()) / magnitude_factor(FLOAT32, 1, decay))
    # A sum token by token would stay below a half.
    assert 0.5 < worst < 1


def test_a_decay_that_is_an_ulp_off_at_each_token_stays_within_the_factor() -> None:
    tokens = 200
    for decay in (0.51, 0.75, 1 - 2.0**-5):
        exact = torch.tensor(decay)
        off = torch.nextafter(exact, torch.tensor(1.0))
        error = (float(off) / float(exact)) ** tokens - 1
        assert error > magnitude_factor(FLOAT32, tokens)
        assert error < magnitude_factor(FLOAT32, tokens, steps=tokens)


@pytest.mark.parametrize("terms", [1, 16, 200])
def test_equal_terms_that_round_alike_stay_within_the_allowed_deviations(terms: int) -> None:
    # A sum of n numbers x, each perturbed by its own u, scatters by sqrt(n)·u·x. If all round alike
    # it is off by n·u·x, which exceeds 6 times that from n = 37.
    off = math.sqrt(terms)
    assert off <= allowed_deviations(BFLOAT16, terms, alike=True)
    assert (off <= allowed_deviations(BFLOAT16, terms)) == (terms <= 36)


def test_a_telescope_sums_the_errors_of_all_later_tokens() -> None:
    q, error = torch.ones(2, 3, 1, 1).double(), torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1, 1)
    values = {"q": q, "dg": q, "S": torch.full((2, 1, 1, 2), 3.0).double()}
    errors = {"dq": error.expand(2, 3, 1, 1).double(), "dS": torch.ones(2, 1, 1, 2).double()}
    products = (("B T H K", "q", "dq"), ("N H K V", "S", "dS"))
    forward = Telescope("dg", "B T H K", products).sum_of_errors(values, errors, power=1)
    assert forward[1, :, 0, 0].tolist() == [13.0, 12.0, 10.0]
    backward = Telescope("dg", "B T H K", products, reverse=True).sum_of_errors(
        values, errors, power=1
    )
    assert backward[1, :, 0, 0].tolist() == [7.0, 9.0, 13.0]
    # A gradient by channel with a product by head: the product counts for every channel.
    wide = Telescope("dg", "B T H C", (("B T H K", "q", "dq"),)).sum_of_errors(
        values, errors, power=1
    )
    assert wide.shape == (2, 3, 1, 1)
    assert wide[1, :, 0, 0].tolist() == [7.0, 6.0, 4.0]


def test_rules_by_precision_and_map() -> None:
    assert rules(FLOAT32, multilinear=True) == rules(TF32, multilinear=True) == ("magnitude",)
    assert rules(BFLOAT16, multilinear=True) == ("magnitude", "sigma")
    assert {rules(p, multilinear=False) for p in (FLOAT32, TF32, FLOAT16)} == {("sigma",)}


def test_a_budget_is_a_function_of_its_case() -> None:
    tensors = {"x": normal(3, 5)}

    def square(t: object) -> dict[str, Tensor]:
        assert isinstance(t, dict)
        return {"y": t["x"] @ t["x"].mT}

    want = square(tensors)
    how = Computation(precision=BFLOAT16, output_dtypes={"y": torch.bfloat16}, terms=5)
    made = [budgets(square, tensors, want, how, seed=seed)["y"].allowed for seed in (1, 1, 2)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert (made[0] > 2.0**-8 * want["y"].abs()).all()


@pytest.mark.parametrize(("apart", "allowed"), [(1e-16, True), (1e-6, False)])
def test_a_budget_covers_what_the_forms_differ_by_in_float64_only(
    apart: float, allowed: bool
) -> None:
    x = {"x": normal(5)}
    want = {"y": torch.full((5,), apart, dtype=torch.float64)}
    how = Computation(precision=FLOAT32, output_dtypes={"y": torch.float32}, terms=1)
    made = budgets(lambda t: {"y": 0 * t["x"]}, x, want, how)
    assert (made["y"].allowed > apart).all() == allowed


def test_sigma_of_one_value_is_not_small_by_chance() -> None:
    x = {"x": torch.tensor([1.0], dtype=torch.float64)}
    want = {"y": x["x"] * 3}
    how = Computation(precision=BFLOAT16, output_dtypes={"y": torch.float32}, terms=1)
    low = 0
    for seed in range(100):
        spread = sigma(lambda t: {"y": t["x"] * 3}, x, want, how, seed=seed)
        low += bool(spread["y"].sigma < 3 * 2.0**-8)
    assert low <= 2


@pytest.mark.parametrize("width", [1, 3, 8])
def test_results_whose_errors_are_all_in_proportion_have_no_loss_limit(width: int) -> None:
    tensors = {"x": torch.ones(4, width, dtype=torch.float64), "zero": torch.zeros(()).double()}

    def oracle(t: object) -> dict[str, Tensor]:
        assert isinstance(t, dict)
        return {"narrow": t["x"] * 3, "zero": t["x"] * t["zero"]}

    want = oracle(tensors)
    dtypes = dict.fromkeys(want, torch.bfloat16)
    how = Computation(precision=BFLOAT16, output_dtypes=dtypes, terms=1)
    spreads = sigma(oracle, tensors, want, how)
    assert (spreads["narrow"].loss_limit < math.inf) == (width == 8)
    assert spreads["zero"].loss_limit == math.inf


def test_a_tie_that_always_goes_one_way_is_no_loss() -> None:
    s = torch.tensor([1.0, 1.0 + 2.0**-30], dtype=torch.float64).expand(64, 2)
    tensors = {"s": s, "v": normal(2, 8), "x": normal(64, 8, seed=1)}

    def oracle(t: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"o": t["v"][(t["s"] * 1.0).argmax(-1)] + 2.0**-20 * t["x"]}

    want = oracle(tensors)["o"]
    how = Computation(precision=BFLOAT16, output_dtypes={"o": torch.bfloat16}, terms=1)
    budget = budgets(oracle, tensors, {"o": want}, how)["o"]
    got = (tensors["v"][0] + 2.0**-20 * tensors["x"]).bfloat16()
    assert compare("o", got, want, budget).passed


def test_a_weight_below_the_underflow_has_a_budget() -> None:
    # In float16 a weight of 1e-9 is 0 or 2^-24, and dp = 1 is where the others are 0.
    logits = torch.tensor([[0.0, -20.7]], dtype=torch.float64).repeat(200, 1)
    dp = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand_as(logits)
    with Rounding(FLOAT16, torch.Generator().manual_seed(0)):
        p = torch.softmax(logits, -1)
        found = torch.ops.aten._softmax_backward_data(dp, p, -1, torch.float64)
    assert found.isfinite().all()


def test_underflow_changes_the_sign_of_what_cancels_only() -> None:
    tiny = torch.full((200, 3), 1e-9, dtype=torch.float64)
    ones = torch.ones(3, 1, dtype=torch.float64)
    mixed = torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64)
    with Rounding(FLOAT16, torch.Generator().manual_seed(0)):
        product, total, below, cancelled = tiny * 0.5, tiny.sum(1), -tiny @ ones, tiny @ mixed
    assert (product > 0).all()
    assert (total > 0).all()
    assert (below < 0).all()
    assert (cancelled < 0).any()
    assert (cancelled > 0).any()


@pytest.mark.parametrize("masked", [False, True])
def test_a_row_sum_whose_products_cancel_is_rounded_as_its_output_is(masked: bool) -> None:
    s = torch.zeros(1, 4, 5, dtype=torch.float64, requires_grad=True)
    v = torch.tensor([3.0, 3.0], dtype=torch.float64).expand(1, 5, 2)
    do = torch.tensor([1.0, -1.0], dtype=torch.float64).expand(1, 4, 2)

    def gradient() -> Tensor:
        p = torch.softmax(s, -1)
        o = (torch.where(torch.zeros(1, 4, 1).bool(), 0.0, p) if masked else p) @ v
        return torch.autograd.grad(o, s, do)[0]

    generator = torch.Generator().manual_seed(0)
    with Rounding(BFLOAT16, generator, float32_logits=True, row_sums=2.0**-9):
        assert gradient().abs().max() > 2.0**-12


def test_a_rounded_weight_moves_all_its_results_alike() -> None:
    # So `Σ_v do_v o_v` of one sign has the error of a weight, and not one of 128 that cancel.
    p = torch.softmax(torch.randn(50, 5, dtype=torch.float64), -1)
    v = torch.full((5, 2), 1000.0, dtype=torch.float64)
    with Rounding(BFLOAT16, torch.Generator().manual_seed(0), float32_logits=True):
        o = p @ v
    moved = o - 1000
    assert moved.std() > 1000 * 2.0**-10
    assert (moved[:, 0] - moved[:, 1]).abs().max() < 1000 * 2.0**-18


def test_the_argument_of_a_softmax_is_rounded_too() -> None:
    # exp(x log2 e) of a kernel: an error of 2^-24 in an argument of -57 is one of 57 in the weight.
    logits = torch.tensor([[0.0, -57.0]], dtype=torch.float64).repeat(400, 1)
    with Rounding(FLOAT32, torch.Generator().manual_seed(0)):
        p = torch.softmax(logits, -1)
    want = torch.softmax(logits[:1], -1)
    scatter = ((p - want) / want).std(0) / FLOAT32.unit
    torch.testing.assert_close(
        scatter, torch.tensor([1.0, 58.0], dtype=torch.float64), rtol=0.2, atol=0
    )


def test_products_of_one_column_round_their_operand() -> None:
    # einsum multiplies elementwise where the dim that it sums has size 1.
    generator = torch.Generator().manual_seed(0)
    dz = torch.randn(1, 40, 40, dtype=torch.float64, generator=generator)
    q = torch.randn(1, 40, 1, generator=generator).bfloat16().double()
    with Rounding(BFLOAT16, generator, float32_logits=True):
        noisy = dz * q
        for_each_row = dz * q.expand_as(dz)
    exact = dz * q
    assert (noisy / exact - 1).std() == pytest.approx(BFLOAT16.unit, rel=0.1)
    assert (for_each_row / exact - 1).abs().max() < 2.0**-20


@pytest.mark.parametrize(("steps", "runs"), [(1, DRAWS), (64, 1)])
def test_a_form_of_many_small_steps_is_perturbed_in_many_runs_at_once(
    steps: int, runs: int
) -> None:
    called = []

    def oracle(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        called.append(tensors)
        return {"y": torch.cat([3 * part for part in tensors["x"].chunk(steps)])}

    x = {"x": normal(2**16)}
    how = Computation(precision=FLOAT32, output_dtypes={"y": torch.float32}, terms=5)
    sigma(oracle, x, {"y": 3 * x["x"]}, how)
    # The exact run comes first.
    assert len(called) == 1 + runs
