"""Normalisation of queries and keys."""

from hypothesis import strategies as st

import reference
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_NUMBERS
from properties.catalogue.op import Mode, Option

L2NORM = declare(
    reference.l2norm,
    quiet_form=reference.l2norm,
    modes=(Mode("fused"),),
    options=(
        Option(
            "eps",
            1e-6,
            # Beside squares of gaussian numbers: nothing, a little, and most of the sum.
            lambda case: st.sampled_from([1e-6, 1.0, 1, 100.0]),
            bad=(0.0, -1e-6, float("nan"), float("inf"), *NO_NUMBERS),
            switch=lambda case: 1e-3,
        ),
    ),
    work=lambda n: n["H"] * n["T"] * n["D"],
    linear_in=(),
    recipes=("gaussian", "zeros", "large_states", "uneven"),
)
