"""Normalisation of queries and keys."""

from hypothesis import strategies as st

import reference
from properties.catalogue.draws import NO_NUMBERS, head_dims
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role

L2NORM = Op(
    name="l2norm",
    oracle=reference.l2norm,
    second_form=reference.l2norm.second_form,
    quiet_form=reference.l2norm,
    modes=(Mode("fused"),),
    arguments=(Argument("x", "B T H D", Role.VALUE),),
    options=(
        Option(
            "eps",
            1e-6,
            # Beside squares of gaussian numbers: nothing, a little, and most of the sum.
            lambda case: st.sampled_from([1e-6, 1.0, 1, 100.0]),
            bad=(0.0, -1e-6, float("nan"), float("inf"), *NO_NUMBERS),
        ),
    ),
    outputs=(Output("y", "B T H D"),),
    dims={"B": st.integers(1, 3), "H": st.integers(1, 3), "D": head_dims()},
    work=lambda n: n["H"] * n["T"] * n["D"],
    packed_by=(),
    recipes=("gaussian", "zeros", "large_states", "uneven"),
    laws=(
        "differential",
        "causality",
        "permutation",
        "layout_invariance",
        "context_invariance",
        "determinism",
        "plumbing",
        "untouched_inputs",
        "written_outputs",
        "rejection",
    ),
)
