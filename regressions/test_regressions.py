"""Every known bug both ways: its case passes today, and fails when the bug is planted."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache

import pytest

from properties.planting.edit import Edit
from properties.planting.trial import Laboratory, Outcome, Pinned
from regressions.known_bug import KnownBug, known_bugs

BUGS = known_bugs()


@pytest.fixture(scope="module")
def laboratory(request: pytest.FixtureRequest) -> Iterator[Laboratory]:
    option = request.config.getoption
    with Laboratory(option("oracles_target"), option("oracles_device")) as laboratory:
        yield laboratory


@pytest.fixture(scope="module")
def today(laboratory: Laboratory) -> Callable[[Pinned], Future[Outcome]]:
    """Runs what is pinned as the code stands: once, however many bugs it pins."""
    return cache(laboratory.submit)


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_case_passes_today(bug: KnownBug, today: Callable[[Pinned], Future[Outcome]]) -> None:
    outcome = today(bug.pinned).result()
    assert outcome.caught_by is None, outcome.report


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_case_catches_the_planted_bug(bug: KnownBug, laboratory: Laboratory) -> None:
    if not bug.shows_on(laboratory.device):
        pytest.skip(f"shows on {bug.only_on} only, which is not the device here")
    outcome = laboratory.submit(bug.pinned, bug.planted).result()
    assert outcome.caught_by is not None, "it is not noticed when it is planted again"


def test_no_bug_is_planted_twice() -> None:
    names: dict[Edit, str] = {}
    for name, bug in BUGS.items():
        other = names.setdefault(bug.planted, name)
        assert other == name, f"{name} and {other} are one bug: their edits are the same"
