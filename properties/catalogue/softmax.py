"""Softmax attention."""

from dataclasses import replace

from hypothesis import strategies as st

import reference
from properties.case import Case
from properties.catalogue.draws import BAD_SCALES, head_dims, scales
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role, always


def _windows(case: Case) -> st.SearchStrategy[int | None]:
    longest = max(case.key_lengths or case.lengths)
    return st.one_of(
        st.none(), st.integers(1, max(1, longest - 1)), st.integers(max(1, longest), longest + 3)
    )


def _settle(case: Case) -> Case:
    """The forgetting gate is defined for causal attention alone."""
    if "g" in case.given:
        return replace(case, options={**case.options, "causal": True})
    return case


ATTENTION = Op(
    name="attention",
    oracle=reference.attention,
    second_form=reference.attention_online,
    quiet_form=reference.attention,
    modes=(Mode("parallel"),),
    arguments=(
        Argument("q", "B T H K", Role.QUERY),
        Argument("k", "B S G K", Role.KEY),
        Argument("v", "B S G V", Role.VALUE),
        Argument("sink", "H", Role.LOGIT, optional=True, dtype="float32"),
        Argument(
            "alibi_slopes",
            "H",
            Role.SLOPE,
            optional=True,
            differentiable=False,
            dtype="float32",
        ),
        Argument("g", "B S H", Role.LOG_DECAY, optional=True, dtype="either"),
    ),
    options=(
        Option("scale", None, lambda case: scales(), bad=BAD_SCALES),
        Option("causal", False, lambda case: st.booleans()),
        Option("window", None, _windows, bad=(0, -1, 2.5, "4", True)),
        Option(
            "softcap",
            None,
            lambda case: st.sampled_from([None, 0.5, 2.0, 30.0]),
            bad=(0.0, -1.0, float("nan"), float("inf"), "30"),
        ),
        Option("return_lse", False, always(True), auxiliary=True),
    ),
    outputs=(
        Output("o", "B T H V"),
        Output("lse", "B H T", asked_by="return_lse", dtype="float32", linear=False),
    ),
    dims={
        "B": st.integers(1, 2),
        "G": st.integers(1, 2),
        "R": st.integers(1, 3),
        "K": head_dims(),
        "V": head_dims(),
    },
    sizes=lambda case: {"H": case.dims["G"] * case.dims["R"]},
    # The logits, and the sums of gates between every two keys.
    work=lambda n: n["H"] * max(n["T"], n["S"]) * n["S"],
    settle=_settle,
    packed_by=("cu_seqlens", "cu_seqlens_k"),
    keys=True,
    continues_by="keys",
    linear_in=("v",),
    float32_logits=True,
    recipes=(
        "gaussian",
        "large_logits",
        "late_maximum",
        "extreme_gates",
        "one_hot_values",
        "zeros",
        "cancelling",
    ),
    laws=(
        "differential",
        "causality",
        "splitting",
        "packing",
        "permutation",
        "linearity",
        "scale_equivariance",
        "layout_invariance",
        "determinism",
        "plumbing",
        "untouched_inputs",
        "written_outputs",
        "rejection",
    ),
)
