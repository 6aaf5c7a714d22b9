"""Convolution over the last few tokens."""

from dataclasses import replace

from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.catalogue.draws import BAD_FLAGS, asked
from properties.catalogue.linear import more_states
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role


def _settle(case: Case) -> Case:
    """An exponential is exact only by luck, so integers go without one."""
    if case.values == "integers":
        return replace(case, options={**case.options, "activation": None})
    return case


SHORT_CONV = Op(
    name="short_conv",
    oracle=reference.short_conv,
    second_form=reference.short_conv.second_form,
    quiet_form=reference.short_conv.second_form,
    modes=(Mode("fused"),),
    arguments=(
        Argument("x", "B T D", Role.VALUE),
        Argument("weight", "D W", Role.KEY),
        Argument("bias", "D", Role.STATE, optional=True),
        Argument("initial_state", "N M D", Role.STATE, optional=True, dtype="float32"),
    ),
    options=(
        Option(
            "activation",
            None,
            lambda case: st.sampled_from([None, "silu"]),
            bad=("relu", True, 1),
        ),
        Option("output_final_state", False, asked, bad=BAD_FLAGS, auxiliary=True),
    ),
    outputs=(
        Output("y", "B T D"),
        Output("final_state", "N M D", asked_by="output_final_state", dtype="float32"),
    ),
    dims={
        "B": st.integers(1, 3),
        "D": st.one_of(
            st.integers(1, 20), st.sampled_from([32, 63, 64, 65, 128, 129, 130, 200, 256])
        ),
        "W": st.one_of(st.integers(2, 6), st.sampled_from([1, 8, 16]), st.integers(1, 16)),
    },
    sizes=lambda case: {"M": case.dims["W"] - 1},
    work=lambda n: n["D"] * n["T"] * n["T"],
    settle=_settle,
    linear_in=("x", "bias", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: case.options.get("activation") is None,
    recipes=("gaussian", "integers", "zeros", "cancelling", "large_states", "uneven"),
    laws=(
        "differential",
        "exactness",
        "causality",
        "splitting",
        "packing",
        "linearity",
        "layout_invariance",
        "context_invariance",
        "request_invariance",
        "determinism",
        "plumbing",
        "untouched_inputs",
        "written_outputs",
        "rejection",
    ),
)
