"""Hypothesis profiles: how much is drawn, and whether runs repeat."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

# Drawing is cheap, running is not, and first runs compile kernels, so time limits mean nothing.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
    "print_blob": False,
}
# Examples of a job in the profiles `dev` and `ci`, before `Job.share`.
EXAMPLES = 12
# Without Phase.target, whose near-copies of the case with the largest error would be a third of so
# few examples.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


def drawn_only(examples: int) -> settings:
    """Return settings that draw so many examples, and shrink and keep none."""
    return settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )


def register() -> None:
    """Register the profiles; load `ci` if the environment variable CI is set, else `dev`.

    - dev: random cases, new ones on every run.
    - ci: as many, from fixed seeds, so that a red run is about the change. (Hypothesis also draws
      constants of the modules imported so far, which can differ between workers.)
    - nightly: many, and new ones every time.
    - trial: those of ci without shrinking, for code with a planted bug.
    """
    settings.register_profile("dev", max_examples=EXAMPLES, phases=_PHASES, **_COMMON)
    settings.register_profile(
        "ci", max_examples=EXAMPLES, phases=_PHASES, derandomize=True, **_COMMON
    )
    settings.register_profile(
        "nightly", max_examples=400, phases=(*_PHASES, Phase.target), **_COMMON
    )
    settings.register_profile(
        "trial",
        max_examples=EXAMPLES,
        phases=(Phase.explicit, Phase.generate),
        derandomize=True,
        report_multiple_bugs=False,
        **_COMMON,
    )
    settings.load_profile("ci" if os.environ.get("CI") else "dev")
