"""Normalization of queries and keys, and of outputs with a gate."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

import reference
from properties.catalogue.declare import declare
from properties.catalogue.draws import EPS
from properties.catalogue.op import Mode, Option, Role

# At 1e-30 lengths of about 1e-15 count.
_EPS = replace(EPS, draw=lambda case: st.sampled_from([1e-6, 1.0, 1, 100.0, 1e-30]))

L2NORM = declare(
    reference.l2norm,
    in_float32=True,
    quiet_form=reference.l2norm,
    modes=(Mode("fused"),),
    options=(_EPS,),
    work=lambda n: n["H"] * n["T"] * n["D"],
    linear_in=(),
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "zeros", "large_states", "uneven"),
)

_GATED: dict[str, Any] = {
    "roles": {"z": Role.LOGIT, "weight": Role.KEY, "bias": Role.KEY},
    "options": (
        _EPS,
        Option(
            "activation",
            "silu",
            lambda case: st.sampled_from(["silu", "sigmoid"]),
            bad=("relu", None, 1),
            switch=lambda case: "sigmoid",
        ),
    ),
    "work": lambda n: n["H"] * n["T"] * n["D"],
    "linear_in": (),
    "of_any_size": lambda case: ("x",),
    "recipes": ("gaussian", "zeros", "large_states", "large_logits", "offset", "uneven"),
}
RMS_NORM_GATED = declare(
    reference.rms_norm_gated,
    in_float32=True,
    quiet_form=reference.rms_norm_gated,
    modes=(Mode("fused"),),
    **_GATED,
)
LAYER_NORM_GATED = declare(
    reference.layer_norm_gated,
    in_float32=True,
    quiet_form=reference.layer_norm_gated,
    wraps=RMS_NORM_GATED,
    # Each token by itself.
    without=("splitting", "packing"),
    **_GATED,
)
