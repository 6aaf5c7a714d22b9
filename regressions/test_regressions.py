"""Every known bug both ways: its case passes today, and fails when the bug is planted.

A test that is pinned passes in its own file.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache

import pytest

from properties.planting.edit import Edit
from properties.planting.trial import LawAbout, Outcome, Pinned, TrialPool
from regressions.known_bug import KnownBug, known_bugs

BUGS = known_bugs()
ABOUT_CASES = {name: bug for name, bug in BUGS.items() if isinstance(bug.pinned, LawAbout)}


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> Iterator[TrialPool]:
    option = request.config.getoption
    with TrialPool(option("oracles_target"), option("oracles_device")) as trials:
        yield trials


@pytest.fixture(scope="module")
def today(trials: TrialPool) -> Callable[[Pinned], Future[Outcome]]:
    """Runs what is pinned as the code stands: once, however many bugs it pins."""
    return cache(trials.submit)


@pytest.mark.parametrize("bug", ABOUT_CASES.values(), ids=ABOUT_CASES)
def test_case_passes_today(bug: KnownBug, today: Callable[[Pinned], Future[Outcome]]) -> None:
    outcome = today(bug.pinned).result()
    assert outcome.caught_by is None, outcome.report


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_case_catches_the_planted_bug(bug: KnownBug, trials: TrialPool) -> None:
    if not bug.shows_on(trials.device):
        pytest.skip(f"shows on {bug.only_on} only, which is not the device here")
    outcome = trials.submit(bug.pinned, bug.planted).result()
    assert outcome.caught_by is not None, "it is not noticed when it is planted again"


def test_no_bug_is_planted_twice() -> None:
    names: dict[Edit, str] = {}
    for name, bug in BUGS.items():
        other = names.setdefault(bug.planted, name)
        assert other == name, f"{name} and {other} are one bug: their edits are the same"
