"""Convolution over the last few tokens."""

from hypothesis import strategies as st

import reference
from properties.catalogue.declare import declare
from properties.catalogue.op import Mode, Option, Role

_CHANNELS = st.one_of(
    st.integers(1, 20), st.sampled_from([32, 63, 64, 65, 128, 129, 130, 200, 256])
)

SHORT_CONV = declare(
    reference.short_conv,
    in_float32=True,
    modes=(Mode("fused"),),
    roles={"weight": Role.KEY, "bias": Role.STATE},
    options=(
        Option(
            "activation",
            None,
            lambda case: st.sampled_from([None, "silu"]),
            bad=("relu", True, 1),
            exact=(None,),  # an exponential is exact only by luck
            switch=lambda case: "silu",
        ),
    ),
    dims={
        "D": _CHANNELS,
        "W": st.one_of(st.integers(2, 6), st.sampled_from([1, 8, 16]), st.integers(1, 16)),
    },
    work=lambda n: n["D"] * n["T"] * n["T"],
    multilinear=lambda case: case.options.get("activation") is None,
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "integers", "zeros", "cancelling", "large_states", "uneven"),
)

TOKEN_SHIFT = declare(
    reference.token_shift,
    in_float32=True,
    wraps=SHORT_CONV,
    dims={"D": _CHANNELS},
    work=lambda n: n["D"] * n["T"],
    multilinear=lambda case: True,
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "integers", "zeros", "large_states"),
)
