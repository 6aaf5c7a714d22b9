"""Linear recurrences without a delta rule."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.catalogue.draws import BAD_FLAGS, BAD_SCALES, NO_COUNTS, asked, head_dims, scales
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role

if TYPE_CHECKING:
    from properties.cases.tensors import Inputs

_QKV = (
    Argument("q", "B T H K", Role.QUERY),
    Argument("k", "B T H K", Role.KEY),
    Argument("v", "B T H V", Role.VALUE),
)
_STATE = Argument("initial_state", "N H K VZ", Role.STATE, optional=True, dtype="float32")
_OPTIONS = (
    Option("scale", None, lambda case: scales(), bad=BAD_SCALES),
    Option("normalize", False, lambda case: st.booleans(), bad=BAD_FLAGS),
    Option("reverse", False, lambda case: st.booleans(), bad=BAD_FLAGS),
    Option("output_final_state", False, asked, bad=BAD_FLAGS, auxiliary=True),
)
_OUTPUTS = (
    Output("o", "B T H V"),
    Output("final_state", "N H K VZ", asked_by="output_final_state", dtype="float32"),
)
_DIMS = {
    "B": st.integers(1, 3),
    "H": st.integers(1, 3),
    "K": head_dims(),
    "V": head_dims(),
}
_RECIPES = (
    "gaussian",
    "integers",
    "large_states",
    "uneven",
    "faint",
    "late_maximum",
    "one_hot_values",
    "zeros",
    "cancelling",
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


def _state_width(case: Case) -> dict[str, int]:
    return {"VZ": case.dims["V"] + bool(case.options.get("normalize"))}


def _normalized(case: Case) -> bool:
    return bool(case.options.get("normalize"))


def _settle(case: Case) -> Case:
    """A quotient is exact only by luck, so integers go without a normaliser."""
    if case.values == "integers" and _normalized(case):
        return replace(case, options={**case.options, "normalize": False})
    return case


def more_states(case: Case, inputs: "Inputs") -> Iterator[tuple[str, dict[str, Any], str]]:
    """States of another width, or of more sequences."""
    state = inputs.tensors.get("initial_state")
    if state is not None:
        wide = torch.cat([state, state[..., :1]], -1)
        yield "a state that is too wide", {"initial_state": wide}, "initial_state"
        yield "a state too many", {"initial_state": torch.cat([state, state[:1]])}, "initial_state"


LINEAR_ATTN = Op(
    name="linear_attn",
    oracle=reference.linear_attn,
    second_form=reference.linear_attn.second_form,
    quiet_form=reference.linear_attn.second_form,
    modes=(
        Mode("chunk", refuses=frozenset({"reverse"})),
        Mode("fused_chunk", refuses=frozenset({"reverse"})),
        Mode("fused_recurrent"),
    ),
    arguments=(*_QKV, _STATE),
    options=_OPTIONS,
    outputs=_OUTPUTS,
    dims=_DIMS,
    sizes=_state_width,
    # The weights of all pairs, and the state at each token; only one form keeps those, and only one
    # of some twelve runs of an oracle for its budget is of that form.
    work=lambda n: n["H"] * n["T"] * (n["T"] + n["K"] * n["V"] / 12),
    settle=_settle,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: not _normalized(case),
    nonnegative=_normalized,
    recipes=_RECIPES,
    laws=_LAWS,
)

GLA = Op(
    name="gla",
    oracle=reference.gla,
    second_form=reference.gla.second_form,
    quiet_form=reference.gla.second_form,
    modes=(
        Mode("chunk", refuses=frozenset({"reverse", "gv"})),
        Mode("fused_recurrent"),
    ),
    arguments=(
        *_QKV,
        Argument("g", "B T H K", Role.LOG_DECAY, optional=True, dtype="either"),
        Argument("gv", "B T H V", Role.LOG_DECAY, optional=True, dtype="either"),
        _STATE,
    ),
    options=_OPTIONS,
    outputs=_OUTPUTS,
    dims=_DIMS,
    sizes=_state_width,
    # Each pair of tokens has a decay of its own per channel. Few operations see those, a third of
    # those that see the weights of pairs.
    work=lambda n: n["H"] * n["T"] * (n["T"] * (n["K"] + n["V"]) + n["K"] * n["V"]) / 3,
    settle=_settle,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: not _normalized(case),
    nonnegative=_normalized,
    recipes=(*_RECIPES, "extreme_gates", "strong_gates", "closed_gates"),
    laws=_LAWS,
)

_UNNORMALIZED = tuple(option for option in _OPTIONS if option.name != "normalize")
_OUTPUTS_ALONE = (
    Output("o", "B T H V"),
    Output("final_state", "N H K V", asked_by="output_final_state", dtype="float32"),
)
_STATE_ALONE = replace(_STATE, dims="N H K V")
_GATED_MODES = (
    Mode("chunk", refuses=frozenset({"reverse"})),
    Mode("fused_chunk", refuses=frozenset({"reverse"})),
    Mode("fused_recurrent"),
    Mode("parallel", refuses=frozenset({"reverse"})),
)


def _pairs_and_states(n: Mapping[str, int]) -> float:
    """The weights of all pairs, and the state at each token in the one run that keeps it."""
    return n["H"] * n["T"] * (n["T"] + n["K"] * n["V"] / 12)


SIMPLE_GLA = Op(
    name="simple_gla",
    oracle=reference.simple_gla,
    second_form=reference.simple_gla.second_form,
    quiet_form=reference.simple_gla.second_form,
    modes=_GATED_MODES,
    arguments=(
        *_QKV,
        Argument("g", "B T H", Role.LOG_DECAY, optional=True, dtype="either"),
        _STATE_ALONE,
    ),
    options=_UNNORMALIZED,
    outputs=_OUTPUTS_ALONE,
    dims=_DIMS,
    work=_pairs_and_states,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: True,
    recipes=(*_RECIPES, "extreme_gates", "strong_gates", "closed_gates"),
    laws=_LAWS,
)

# Of a reading, a few lines before the kernels of another op: what these lines may break.
OF_A_READING = (
    "differential",
    "splitting",
    "packing",
    "context_invariance",
    "request_invariance",
    "plumbing",
    "rejection",
)

RETENTION = Op(
    name="retention",
    heads_alike=False,
    constant_decay=lambda case: -math.log1p(-(2.0**-5)),
    oracle=reference.retention,
    second_form=reference.retention.second_form,
    quiet_form=reference.retention.second_form,
    modes=_GATED_MODES,
    arguments=(*_QKV, _STATE_ALONE),
    options=_UNNORMALIZED,
    outputs=_OUTPUTS_ALONE,
    dims=_DIMS,
    work=_pairs_and_states,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: True,
    recipes=_RECIPES,
    laws=OF_A_READING,
)


def _decay_of_the_last_head(case: Case) -> float:
    heads, layer, layers = case.dims["H"], case.options["layer_idx"], case.options["num_layers"]
    decay: float = 8 * (heads - 1) / heads * (1 - layer / layers)
    return decay


def _layers(case: Case) -> st.SearchStrategy[int]:
    """From 0 to the number of layers that the case has."""
    return st.integers(0, case.options["num_layers"])


LIGHTNING_ATTN = Op(
    name="lightning_attn",
    heads_alike=False,
    constant_decay=_decay_of_the_last_head,
    oracle=reference.lightning_attn,
    second_form=reference.lightning_attn.second_form,
    quiet_form=reference.lightning_attn.second_form,
    modes=_GATED_MODES,
    arguments=(*_QKV, _STATE_ALONE),
    options=(
        Option("num_layers", 24, lambda case: st.integers(1, 24), bad=(0, -1, *NO_COUNTS)),
        Option("layer_idx", 0, _layers, bad=(-1, 30, *NO_COUNTS)),
        *_UNNORMALIZED,
    ),
    outputs=_OUTPUTS_ALONE,
    dims=_DIMS,
    work=_pairs_and_states,
    linear_in=("v", "initial_state"),
    mistakes=more_states,
    multilinear=lambda case: True,
    recipes=_RECIPES,
    laws=OF_A_READING,
)

MAMBA2 = Op(
    name="mamba2",
    oracle=reference.mamba2,
    second_form=reference.mamba2.second_form,
    quiet_form=reference.mamba2.second_form,
    modes=tuple(Mode(mode.name) for mode in _GATED_MODES),
    arguments=(
        Argument("x", "B T H V", Role.VALUE),
        Argument("dt", "B T H", Role.STEP, dtype="either"),
        Argument("A", "H", Role.LOG_DECAY, dtype="either"),
        Argument("B", "B T G K", Role.KEY),
        Argument("C", "B T G K", Role.QUERY),
        Argument("D", "H", Role.VALUE, optional=True, dtype="either"),
        _STATE_ALONE,
    ),
    options=tuple(option for option in _UNNORMALIZED if option.auxiliary),
    outputs=(replace(_OUTPUTS_ALONE[0], name="y"), _OUTPUTS_ALONE[1]),
    dims={
        "B": st.integers(1, 3),
        "G": st.integers(1, 3),
        "R": st.integers(1, 4),
        "K": head_dims(),
        "V": head_dims(),
    },
    sizes=lambda case: {"H": case.dims["G"] * case.dims["R"]},
    work=_pairs_and_states,
    linear_in=("x", "initial_state"),
    mistakes=more_states,
    recipes=(*_RECIPES, "extreme_gates", "strong_gates"),
    laws=OF_A_READING,
)
