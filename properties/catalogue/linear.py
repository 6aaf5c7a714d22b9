"""Linear recurrences without a delta rule."""

import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.catalogue.declare import RECURRENCE_GATES, declare, more_states, rounding_flag
from properties.catalogue.draws import NO_COUNTS, count
from properties.catalogue.op import BadCall, Mode, Option, Role
from properties.catalogue.work import pairs_and_states

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
# Of ops that round even where integers are small.
_ROUNDED = tuple(name for name in _RECIPES if name != "integers")
# A step of 0 times a rate of -inf is NaN.
_OF_STEPS = (*_RECIPES, *(name for name in RECURRENCE_GATES if name != "closed_gates"))
_FORWARD_ALONE = frozenset({"reverse"})
_MODES = (
    Mode("chunk", refuses=_FORWARD_ALONE),
    Mode("fused_chunk", refuses=_FORWARD_ALONE),
    Mode("fused_recurrent"),
)
_NORMALIZE = rounding_flag("normalize")


def _normalized(case: Case) -> bool:
    return bool(case.options.get("normalize"))


def _by_both_channels(n: Mapping[str, int]) -> float:
    """Like `pairs_by_channel`, with decays by channel of the values too."""
    return n["H"] * n["T"] * (n["T"] * (n["K"] + n["V"]) + n["K"] * n["V"]) / 3


_normalizable = partial(
    declare,
    options=(_NORMALIZE,),
    multilinear=lambda case: not _normalized(case),
    nonnegative=_normalized,
    # A quotient does not depend on the size of the queries, its divisor does.
    of_any_size=lambda case: ("q",) if _normalized(case) else ("v",),
    recipes=_RECIPES,
)

LINEAR_ATTN = _normalizable(
    reference.linear_attn,
    modes=_MODES,
    work=pairs_and_states,
)

GLA = _normalizable(
    reference.gla,
    modes=(Mode("chunk", refuses=_FORWARD_ALONE | {"gv"}), Mode("fused_recurrent")),
    work=_by_both_channels,
)

SIMPLE_GLA = declare(
    reference.simple_gla,
    modes=(*_MODES, Mode("parallel", refuses=_FORWARD_ALONE)),
    work=pairs_and_states,
    multilinear=lambda case: True,
    recipes=_RECIPES,
)

RETENTION = declare(
    reference.retention,
    wraps=SIMPLE_GLA,
    heads_alike=False,
    constant_decay=lambda case: -math.log1p(-(2.0**-5)),
    multilinear=lambda case: True,
    recipes=_RECIPES,
)


def _decay_of_the_last_head(case: Case) -> float:
    heads, layer, layers = case.dims["H"], case.options["layer_idx"], case.options["num_layers"]
    decay: float = 8 * (heads - 1) / heads * (1 - layer / layers)
    return decay


def _layers(case: Case) -> st.SearchStrategy[int]:
    """From 0 to the number of layers that the case has."""
    return st.integers(0, case.options["num_layers"])


LIGHTNING_ATTN = declare(
    reference.lightning_attn,
    wraps=SIMPLE_GLA,
    heads_alike=False,
    constant_decay=_decay_of_the_last_head,
    options=(
        count("num_layers", 24, lambda case: st.integers(1, 24), switched=3),
        Option("layer_idx", 0, _layers, bad=(-1, 30, *NO_COUNTS), switch=lambda case: 1),
    ),
    multilinear=lambda case: True,
    recipes=_RECIPES,
)

MAMBA2 = declare(
    reference.mamba2,
    wraps=SIMPLE_GLA,
    roles={"dt": Role.STEP, "A": Role.LOG_DECAY, "B": Role.KEY, "C": Role.QUERY},
    linear_in=("x", "initial_state"),
    recipes=_OF_STEPS,
)


def _with_pairs(case: Case) -> Case:
    """Pairs of channels fit into the keys."""
    return case.with_dims(P=min(case.dims["P"], case.dims["K"] // 2))


def _too_many_pairs(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    yield from more_states(case, inputs)
    theta = inputs.tensors["theta"]
    pairs = case.dims["K"] // 2 + 1
    yield "a pair too many", {"theta": theta.new_zeros(*theta.shape[:-1], pairs)}, "theta"


MAMBA3 = declare(
    reference.mamba3,
    wraps=SIMPLE_GLA,
    roles={
        "dt": Role.STEP,
        "B": Role.KEY,
        "C": Role.QUERY,
        "lam": Role.RATE,
        "theta": Role.FACTOR,
    },
    linear_in=(),
    settle=_with_pairs,
    mistakes=_too_many_pairs,
    recipes=_ROUNDED,
)

HGRN = declare(
    reference.hgrn,
    in_float32=True,
    modes=(Mode("fused_recurrent"),),
    work=lambda n: n["D"] * n["T"] * n["T"] / 3,
    multilinear=lambda case: True,
    recipes=("gaussian", "integers", "large_states", "uneven", "zeros"),
)

RWKV6 = declare(
    reference.rwkv6,
    wraps=GLA,
    roles={"r": Role.QUERY, "w": Role.LOG_DECAY, "u": Role.KEY},
    linear_in=("v", "initial_state"),
    multilinear=lambda case: True,
    recipes=_RECIPES,
)

# Logits are sums of keys that slots take, times values of a state: neither is bounded.
GSA = declare(
    reference.gsa,
    wraps=GLA,
    modes=(Mode("fused_recurrent"),),
    roles={"s": Role.RATE},
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * (n["T"] * n["M"] + n["M"] * (n["K"] + n["V"])) / 3,
    recipes=tuple(name for name in _ROUNDED if name != "large_states"),
)


def _with_waves(case: Case) -> Case:
    """A ring has an odd number of slots."""
    return case.with_dims(M=case.dims["M"] | 1)


def _even_rings(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    yield from more_states(case, inputs)
    readout = inputs.tensors["readout"]
    even = torch.cat([readout, readout[:, :1]], 1)
    even = torch.cat([even, even[:, :, :1]], 2)
    if inputs.tensors.get("initial_state") is None:
        yield "an even number of slots", {"readout": even}, "readout"


CYFA = declare(
    reference.cyfa,
    wraps=SIMPLE_GLA,
    modes=(Mode("chunk"), Mode("fused_chunk"), Mode("fused_recurrent")),
    roles={
        "delta": Role.TURN,
        "readout": Role.PROJECTION,
        "q_norm_weight": Role.KEY,
        "k_norm_weight": Role.KEY,
    },
    linear_in=(),
    settle=_with_waves,
    mistakes=_even_rings,
    work=lambda n: n["H"] * n["T"] * (n["T"] + n["M"]) * n["M"],
    recipes=tuple(name for name in _ROUNDED if name != "large_states"),
)

# The last column of the state is a logarithm, so nothing is linear in the state. A kernel takes
# exponentials of differences from it, whose error is an ulp of hundreds. The second form never
# rounds it, so the first gives the budget.
LIGHTNET = declare(
    reference.lightnet,
    wraps=GLA,
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * n["K"] * (n["T"] + n["V"]),
    recipes=(*_ROUNDED, "offset"),
    quiet_form=reference.lightnet,
)

ABC = declare(
    reference.abc,
    wraps=GLA,
    modes=(Mode("fused_recurrent"),),
    roles={"s": Role.KEY},
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * n["M"] * (n["T"] + n["K"] + n["V"]),
    recipes=(*_ROUNDED, "offset"),
    quiet_form=reference.abc,
)

RWKV4 = declare(
    reference.rwkv4,
    in_float32=True,
    wraps=HGRN,
    modes=(Mode("fused_recurrent"),),
    # exp of a large w is infinite.
    roles={"w": Role.FACTOR, "u": Role.KEY},
    linear_in=(),
    work=lambda n: n["D"] * n["T"] * n["T"],
    recipes=("gaussian", "large_states", "late_maximum", "offset", "zeros", "cancelling"),
    # The logarithm in the state may be hundreds, and is rounded at each token.
    quiet_form=reference.rwkv4,
)

# Its second form multiplies gates as they are: states and gates around 2^8 are exponents whose
# squares, in budgets, overflow.
MLSTM = declare(
    reference.mlstm,
    wraps=SIMPLE_GLA,
    roles={"i": Role.LOGIT},
    linear_in=(),
    work=pairs_and_states,
    recipes=("gaussian", "late_maximum", "one_hot_values", "zeros", "cancelling"),
)

SELECTIVE_SCAN = declare(
    reference.selective_scan,
    wraps=GLA,
    roles={"dt": Role.STEP, "A": Role.LOG_DECAY, "B": Role.KEY, "C": Role.QUERY},
    linear_in=("x", "initial_state"),
    work=lambda n: n["D"] * n["T"] * n["K"] * n["T"],
    recipes=_OF_STEPS,
)


def _levels(case: Case) -> dict[str, int]:
    """Return the number of levels that the longest sequence needs."""
    return {"L": max(0, *(length - 1 for length in case.lengths)).bit_length() + 1}


LOG_LINEAR_ATTN = declare(
    reference.log_linear_attn,
    modes=(Mode("chunk"), Mode("fused_recurrent")),
    roles={"level_scales": Role.KEY},
    sizes=_levels,
    computed=("L",),
    work=lambda n: n["H"] * n["T"] * (n["T"] + n["L"] * n["K"] * n["V"] / 12),
    multilinear=lambda case: True,
    recipes=_RECIPES,
)


def _features(case: Case) -> dict[str, int]:
    D, nu = case.dims.get("D", 1), case.options.get("nu", 1)
    widths = {"hedgehog": 2 * D, "dpfp": 2 * D * nu, "taylor": 1 + D + D * D}
    return {"F": widths.get(case.options.get("kind", "elu"), D)}


FEATURE_MAP = declare(
    reference.feature_map,
    in_float32=True,
    quiet_form=reference.feature_map,
    modes=(Mode("fused"),),
    roles={"x": Role.LOGIT},
    options=(
        Option(
            "kind",
            "elu",
            lambda case: st.sampled_from(["elu", "relu", "hedgehog", "dpfp", "taylor"]),
            bad=("gelu", None, 1),
            switch=lambda case: "hedgehog",
        ),
        count("nu", 1, lambda case: st.integers(1, 4)),
    ),
    sizes=_features,
    computed=("F",),
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * n["F"],
    recipes=("gaussian", "zeros", "large_states", "large_logits", "uneven"),
)
