"""Gates and strengths from what a layer projects."""

from hypothesis import strategies as st

import reference
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_NUMBERS
from properties.catalogue.op import Mode, Option, Output, Role

DECAY_GATE = declare(
    reference.decay_gate,
    in_float32=True,
    quiet_form=reference.decay_gate,
    modes=(Mode("fused"),),
    roles={"x": Role.LOGIT, "A_log": Role.KEY, "dt_bias": Role.KEY},
    options=(
        Option(
            "lower_bound",
            None,
            # Half of the gates are without a bound, as in most models.
            lambda case: st.sampled_from([None] * 5 + [-5.0, -5, -1.0, -1e-3, -100.0]),
            bad=(0.0, 5.0, float("nan"), float("-inf"), *NO_NUMBERS),
            switch=lambda case: -5.0,
        ),
    ),
    outputs=(Output("g", "B T H D", dtype="float32"),),
    work=lambda n: n["H"] * n["T"] * n["D"],
    linear_in=(),
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "large_logits", "uneven", "zeros"),
)

STRENGTH_GATE = declare(
    reference.strength_gate,
    in_float32=True,
    quiet_form=reference.strength_gate,
    wraps=DECAY_GATE,
    roles={"x": Role.LOGIT},
    # Each number by itself, and one tensor alone.
    without=("splitting", "packing", "request_invariance"),
    outputs=(Output("beta", "B T H", dtype="float32"),),
    work=lambda n: n["H"] * n["T"],
    linear_in=(),
    recipes=("gaussian", "large_logits", "zeros"),
)
