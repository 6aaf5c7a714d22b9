"""Delta rules: linear recurrences whose state is corrected where it is read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from torch import Tensor

import reference
from properties.cases.case import Case
from properties.catalogue.draws import BAD_FLAGS, BAD_SCALES, asked, head_dims, scales
from properties.catalogue.linear import OF_A_READING, more_states
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role

_STATE = Argument("initial_state", "N H K V", Role.STATE, optional=True, dtype="float32")
_BETA = Argument("beta", "B T H", Role.STRENGTH, optional=True, dtype="either")
_SCALE = Option("scale", None, lambda case: scales(), bad=BAD_SCALES)
_NORMALIZE = Option("use_qk_l2norm_in_kernel", False, lambda case: st.booleans(), bad=BAD_FLAGS)
_KEEP = Option("output_final_state", False, asked, bad=BAD_FLAGS, auxiliary=True)
_OUTPUTS = (
    Output("o", "B T H V"),
    Output("final_state", "N H K V", asked_by="output_final_state", dtype="float32"),
)
_MODES = (Mode("chunk"), Mode("fused_recurrent"))
_DIMS = {
    "B": st.integers(1, 3),
    "H": st.integers(1, 3),
    "K": head_dims(),
    "V": head_dims(),
}
_GROUPED = {
    "B": st.integers(1, 3),
    "G": st.integers(1, 3),
    "R": st.integers(1, 4),
    "K": head_dims(),
    "V": head_dims(),
}
_RECIPES = (
    "gaussian",
    "integers",
    "uneven",
    "late_maximum",
    "one_hot_values",
    "zeros",
    "cancelling",
    "parallel_keys",
    "long_keys",
)
_LAWS = (
    "differential",
    "exactness",
    "causality",
    "splitting",
    "packing",
    "permutation",
    "linearity",
    "scale_equivariance",
    "layout_invariance",
    "context_invariance",
    "request_invariance",
    "determinism",
    "plumbing",
    "untouched_inputs",
    "written_outputs",
    "rejection",
)


def _work(n: Mapping[str, int]) -> float:
    """The weights of all pairs, and the state at each token in the one run that keeps it."""
    return n["H"] * n["T"] * (n["T"] + n["K"] * n["V"] / 12)


def _work_by_channel(n: Mapping[str, int]) -> float:
    """Each pair of tokens has a decay of its own per channel."""
    return n["H"] * n["T"] * (n["T"] * n["K"] + n["K"] * n["V"]) / 3


def _heads(case: Case) -> dict[str, int]:
    return {"H": case.dims["G"] * case.dims["R"]}


def _settle(case: Case) -> Case:
    """A square root is exact only by luck, so integers go without being normalised."""
    if case.values == "integers" and "use_qk_l2norm_in_kernel" in case.options:
        return replace(case, options={**case.options, "use_qk_l2norm_in_kernel": False})
    return case


DELTA_RULE = Op(
    name="delta_rule",
    oracle=reference.delta_rule,
    second_form=reference.delta_rule.second_form,
    quiet_form=reference.delta_rule.second_form,
    modes=_MODES,
    arguments=(
        Argument("q", "B T H K", Role.QUERY),
        Argument("k", "B T H K", Role.UNIT_KEY),
        Argument("v", "B T H V", Role.VALUE),
        _BETA,
        _STATE,
    ),
    options=(_SCALE, _NORMALIZE, _KEEP),
    outputs=_OUTPUTS,
    dims=_DIMS,
    work=_work,
    settle=_settle,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    recipes=_RECIPES,
    laws=_LAWS,
)

GATED_DELTA_RULE = Op(
    name="gated_delta_rule",
    oracle=reference.gated_delta_rule,
    second_form=reference.gated_delta_rule.second_form,
    quiet_form=reference.gated_delta_rule.second_form,
    modes=_MODES,
    arguments=(
        Argument("q", "B T G K", Role.QUERY),
        Argument("k", "B T G K", Role.UNIT_KEY),
        Argument("v", "B T H V", Role.VALUE),
        Argument("g", "B T H", Role.LOG_DECAY, optional=True, dtype="either"),
        _BETA,
        _STATE,
    ),
    options=(_SCALE, _NORMALIZE, _KEEP),
    outputs=_OUTPUTS,
    dims=_GROUPED,
    sizes=_heads,
    work=_work,
    settle=_settle,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    recipes=(*_RECIPES, "extreme_gates", "strong_gates", "closed_gates"),
    laws=_LAWS,
)

KDA = Op(
    name="kda",
    oracle=reference.kda,
    second_form=reference.kda.second_form,
    quiet_form=reference.kda.second_form,
    modes=_MODES,
    arguments=(
        Argument("q", "B T G K", Role.QUERY),
        Argument("k", "B T G K", Role.UNIT_KEY),
        Argument("v", "B T H V", Role.VALUE),
        Argument("g", "B T H K", Role.LOG_DECAY, optional=True, dtype="either"),
        _BETA,
        _STATE,
    ),
    options=(_SCALE, _NORMALIZE, _KEEP),
    outputs=_OUTPUTS,
    dims=_GROUPED,
    sizes=_heads,
    work=_work_by_channel,
    settle=_settle,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    recipes=(*_RECIPES, "extreme_gates", "strong_gates", "closed_gates"),
    laws=_LAWS,
)

DPLR = Op(
    name="dplr",
    oracle=reference.dplr,
    second_form=reference.dplr.second_form,
    quiet_form=reference.dplr.second_form,
    modes=_MODES,
    arguments=(
        Argument("q", "B T H K", Role.QUERY),
        Argument("k", "B T H K", Role.KEY),
        Argument("v", "B T H V", Role.VALUE),
        Argument("a", "B T H K", Role.LOW_RANK),
        Argument("b", "B T H K", Role.LOW_RANK),
        Argument("gk", "B T H K", Role.LOG_DECAY, optional=True, dtype="either"),
        _STATE,
    ),
    options=(_SCALE, _KEEP),
    outputs=_OUTPUTS,
    dims=_DIMS,
    work=_work_by_channel,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    recipes=(
        "gaussian",
        "integers",
        "uneven",
        "late_maximum",
        "one_hot_values",
        "zeros",
        "cancelling",
        "extreme_gates",
        "strong_gates",
        "closed_gates",
    ),
    laws=_LAWS,
)


def _rwkv7_in_parallel(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """RWKV-7 as DPLR, whose second form rounds what kernels round."""
    options.setdefault("scale", 1.0)
    return reference.dplr.second_form(r, k, v, -kk, a * kk, w, **options)


RWKV7 = Op(
    name="rwkv7",
    oracle=reference.rwkv7,
    second_form=reference.rwkv7.second_form,
    quiet_form=_rwkv7_in_parallel,
    modes=_MODES,
    arguments=(
        Argument("r", "B T H K", Role.QUERY),
        Argument("w", "B T H K", Role.LOG_DECAY, dtype="either"),
        Argument("k", "B T H K", Role.KEY),
        Argument("v", "B T H V", Role.VALUE),
        Argument("kk", "B T H K", Role.UNIT_KEY),
        Argument("a", "B T H K", Role.RATE),
        _STATE,
    ),
    options=(replace(_SCALE, default=1.0), _KEEP),
    outputs=_OUTPUTS,
    dims=_DIMS,
    work=_work_by_channel,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    recipes=(
        "gaussian",
        "integers",
        "uneven",
        "late_maximum",
        "one_hot_values",
        "zeros",
        "cancelling",
        "parallel_keys",
        "extreme_gates",
        "strong_gates",
        "closed_gates",
    ),
    laws=OF_A_READING,
)
