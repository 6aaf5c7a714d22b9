"""Hypothesis profiles: how much is drawn, and what a run may depend on."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

# Cases are cheap to draw and dear to run, and a first run compiles kernels: time says nothing here.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
    "print_blob": False,
}
# Of a job of the profiles `dev` and `ci`, before `Job.share`.
EXAMPLES = 12
# Phase.target makes near-copies of the case with the largest error. Of a few examples they would be
# a third.
_FEW = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


def register() -> None:
    """Make the profiles known, and load `ci` where the environment says CI, else `dev`.

    dev: random cases, other ones on every run. ci: as many, and the same ones on every run, so that
    a red run is about the change. nightly: many, and never the same ones twice. trial: those of ci,
    for tests of code with a planted bug, where nobody waits for a small example.
    """
    settings.register_profile("dev", max_examples=EXAMPLES, phases=_FEW, **_COMMON)
    settings.register_profile("ci", max_examples=EXAMPLES, phases=_FEW, derandomize=True, **_COMMON)
    settings.register_profile("nightly", max_examples=400, phases=(*_FEW, Phase.target), **_COMMON)
    settings.register_profile(
        "trial",
        max_examples=EXAMPLES,
        phases=(Phase.explicit, Phase.generate),
        derandomize=True,
        report_multiple_bugs=False,
        **_COMMON,
    )
    settings.load_profile("ci" if os.environ.get("CI") else "dev")
