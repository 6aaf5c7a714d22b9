"""Correct kernels pass with a margin that is not too large; wrong ones are caught.

The kernels are emulated (`emulation`). `python -m properties.verdict.calibrate --runs 160` prints
the full table; a test affords fewer runs.
"""

import pytest

from properties.verdict.calibrate import KERNELS, caught, plants_of, trials
from properties.verdict.sigma import FEW_DRAWS

RUNS = 6


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_honest_kernels_stay_within_their_budget_and_come_near_it(
    kernel: str, precision: str
) -> None:
    worst = 0.0
    for trial in trials(kernel, precision, RUNS):
        comparisons = trial.comparisons()
        assert not caught(comparisons).at_all, (trial, [c.reason for c in comparisons])
        worst = max(worst, *(c.ratio for c in comparisons))
    assert 0.05 <= worst <= 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kernel", "plant"),
    [(k, p) for k in KERNELS for p in plants_of(k) if p != "float16_accumulator"],
)
def test_wrong_kernels_are_caught(kernel: str, plant: str, precision: str) -> None:
    found = [caught(t.comparisons()).at_all for t in trials(kernel, precision, RUNS, plant)]
    assert sum(found) / RUNS >= 0.8


def test_a_float16_accumulator_within_every_budget_shows_in_the_mean() -> None:
    problems = list(trials("linear", "float16", 2 * RUNS, "float16_accumulator"))
    found = [caught(trial.comparisons()) for trial in problems]
    by_element, at_all = (sum(each) / len(problems) for each in zip(*found, strict=True))
    assert by_element <= 0.25
    assert at_all >= 0.5


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_results_that_pass_with_few_runs_pass_with_all(kernel: str, precision: str) -> None:
    acquitted = 0
    honest, wrong = trials(kernel, precision, RUNS), trials(kernel, precision, RUNS, "missing_key")
    for trial in (*honest, *wrong):
        for few, all_ in zip(trial.comparisons(draws=FEW_DRAWS), trial.comparisons(), strict=True):
            assert all_.passed or not few.passed
            assert (few.allowed <= all_.allowed).double().mean() > 0.999
            acquitted += few.passed
    assert acquitted >= RUNS
