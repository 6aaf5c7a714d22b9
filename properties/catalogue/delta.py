"""Delta rules: linear recurrences whose state is corrected where it is read."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import reference
from properties.cases.case import Case
from properties.catalogue.declare import declare, rounding_flag
from properties.catalogue.draws import EPS, count
from properties.catalogue.op import Mode, Role
from properties.catalogue.work import pairs_and_states, pairs_by_channel

_MODES = (Mode("chunk"), Mode("fused_recurrent"))
_NORMALIZE = rounding_flag("use_qk_l2norm_in_kernel")
_RECIPES = (
    "gaussian",
    "integers",
    "uneven",
    "late_maximum",
    "one_hot_values",
    "zeros",
    "cancelling",
)
_OF_UNIT_KEYS = (*_RECIPES, "parallel_keys", "long_keys")
# Of ops that round even where integers are small.
_ROUNDED = tuple(name for name in _OF_UNIT_KEYS if name != "integers")
_UNIT_KEY = {"k": Role.UNIT_KEY}


def _normalized(case: Case) -> tuple[str, ...]:
    return ("q", "k") if case.options.get("use_qk_l2norm_in_kernel") else ()


_declare = partial(
    declare,
    roles=_UNIT_KEY,
    options=(_NORMALIZE,),
    of_any_size=_normalized,
    recipes=_OF_UNIT_KEYS,
)

DELTA_RULE = _declare(reference.delta_rule, modes=_MODES, work=pairs_and_states)
GATED_DELTA_RULE = _declare(reference.gated_delta_rule, modes=_MODES, work=pairs_and_states)
KDA = _declare(reference.kda, modes=_MODES, work=pairs_by_channel)


def _toward(x: Tensor, y: Tensor) -> Tensor:
    """Turn each vector of x to the side of y."""
    return torch.where((x.float() * y.float()).sum(-1, keepdim=True) < 0, -x, x)


def _erasing_where_repeated(
    case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Turn b against a where one token repeats: a transition that makes the state longer would do
    so at each of them.
    """
    if {case.layout_of("a"), case.layout_of("b")} != {"repeated"}:
        return tensors
    return {**tensors, "b": _toward(tensors["b"], -tensors["a"])}


DPLR = declare(
    reference.dplr,
    modes=_MODES,
    roles={"a": Role.LOW_RANK, "b": Role.LOW_RANK},
    amend=_erasing_where_repeated,
    work=pairs_by_channel,
    recipes=_RECIPES,
)


def _rwkv7_in_parallel(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """RWKV-7 as DPLR, whose second form rounds what kernels round."""
    options.setdefault("scale", 1.0)
    return reference.dplr.second_form(r, k, v, -kk, a * kk, w, **options)


RWKV7 = declare(
    reference.rwkv7,
    wraps=DPLR,
    quiet_form=_rwkv7_in_parallel,
    roles={"r": Role.QUERY, "w": Role.LOG_DECAY, "kk": Role.UNIT_KEY, "a": Role.RATE},
    recipes=(*_RECIPES, "parallel_keys"),
)

IPLR = declare(
    reference.iplr,
    wraps=DPLR,
    roles={"a": Role.LOW_RANK, "b": Role.LOW_RANK},
    amend=_erasing_where_repeated,
    recipes=_RECIPES,
)


def _one_long_step(
    case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Leave a long key to the last step of its token alone.

    `long_keys` means five keys, behind which errors grow 17^5 times. Behind 15, no digit is left.
    """
    if case.values != "long_keys":
        return tensors
    k = tensors["k"].clone()
    k[:, :, :-1] = torch.nn.functional.normalize(k[:, :, :-1], dim=-1)
    return {**tensors, "k": k}


GATED_DELTA_PRODUCT = _declare(
    reference.gated_delta_product,
    wraps=GATED_DELTA_RULE,
    amend=_one_long_step,
    work=lambda n: pairs_and_states({**n, "T": n["J"] * n["T"]}),
    dims={"J": st.integers(1, 3)},
)

GDN2 = _declare(
    reference.gdn2,
    wraps=DPLR,
    roles={**_UNIT_KEY, "erase": Role.RATE, "write": Role.RATE},
)


def _erasing(case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn each p to the side of its k, as where it points away states grow at each token."""
    return {**tensors, "p": _toward(tensors["p"], tensors["k"])}


COMBA = _declare(
    reference.comba,
    wraps=DPLR,
    roles={**_UNIT_KEY, "p": Role.LOW_RANK},
    amend=_erasing,
)

GATED_OJA_RULE = declare(
    reference.gated_oja_rule,
    wraps=KDA,
    modes=(Mode("fused_recurrent"),),
    roles={"k": Role.VALUE, "v": Role.UNIT_KEY},
    work=lambda n: pairs_by_channel({**n, "K": n["V"], "V": n["K"]}),
    recipes=_OF_UNIT_KEYS,
)

# Strengths up to 4/3 are stable, as a key that is written may be 1.5 times as long.
_ENERGIES = {
    "k": Role.UNIT_KEY,
    "beta": Role.RATE,
    "g_atk": Role.LOG_DECAY,
    "beta_atk": Role.STEP,
}
# The last column of a state is an energy, whose logarithm is taken.
_PRECONDITIONED: Any = {
    "roles": {**_ENERGIES, "log_atk_scale": Role.KEY},
    "options": (_NORMALIZE,),
    "of_any_size": _normalized,
    "linear_in": (),
    "nonnegative": lambda case: True,
    "recipes": _ROUNDED,
}
PRECOND_GATED_DELTA_RULE = declare(
    reference.precond_gated_delta_rule, wraps=DPLR, **_PRECONDITIONED
)
PRECOND_KDA = declare(reference.precond_kda, wraps=DPLR, **_PRECONDITIONED)

MOMENTUM_DELTA_RULE = declare(
    reference.momentum_delta_rule,
    modes=(Mode("fused_recurrent"),),
    # The second form multiplies dense transitions of 2 K rows. A walk changes the state by products
    # of rank one, and so rounds less.
    quiet_form=reference.momentum_delta_rule,
    roles={
        "k": Role.UNIT_KEY,
        "p": Role.LOW_RANK,
        "log_alpha": Role.LOG_DECAY,
        "log_mu": Role.LOG_DECAY,
        "beta": Role.RATE,
        "eta": Role.RATE,
    },
    amend=_erasing,
    work=lambda n: n["H"] * n["T"] * n["K"] * (n["T"] + 4 * n["K"]),
    # A state that is a sum of sums outgrows the integers that float32 holds, and grows on the way.
    recipes=_ROUNDED,
    of_any_size=None,
)

TITANS = declare(
    reference.titans,
    wraps=MOMENTUM_DELTA_RULE,
    roles={
        "k": Role.UNIT_KEY,
        "theta": Role.RATE,
        "log_alpha": Role.LOG_DECAY,
        "log_eta": Role.LOG_DECAY,
    },
    work=lambda n: n["H"] * n["T"] * (n["T"] * 2 + n["K"] * n["V"] / 12),
    recipes=_ROUNDED,
    of_any_size=None,
)


def _solvable(
    case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Ridges of at least 1/4, and states that are sums of `k kᵀ`: of one with equal elements where
    the layout makes all rows of a state equal.
    """
    found = {**tensors, "lamb": tensors["lamb"] + 1 / 4}
    if (state := tensors.get("initial_state")) is not None:
        K = sizes["K"]
        kk = state[..., :K] @ state[..., :K].mT / max(K, 1)
        if case.layout_of("initial_state") == "expanded":
            kk = kk[..., :1, :1].expand(kk.shape)
        found["initial_state"] = torch.cat([kk, state[..., K:]], dim=-1)
    return found


MESA_NET = declare(
    reference.mesa_net,
    in_float32=True,
    modes=(Mode("chunk"),),
    # The second form subtracts what it has solved with the ridge alone, and rounds more.
    quiet_form=reference.mesa_net,
    roles={"k": Role.UNIT_KEY, "lamb": Role.STEP, "beta": Role.STEP},
    options=(_NORMALIZE,),
    of_any_size=_normalized,
    amend=_solvable,
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * (n["K"] * (n["K"] + n["V"]) + n["T"] * (n["T"] + n["K"]) / 12),
    recipes=_ROUNDED,
)

_MINI_BATCHES = (16, 1, 2, 3, 15, 17, 32, 50, 2**31 - 1, 2**40)

TTT_LINEAR = declare(
    reference.ttt_linear,
    modes=(Mode("fused_chunk"),),
    roles={"k": Role.UNIT_KEY, "weight": Role.KEY, "bias": Role.KEY, "eta": Role.RATE},
    options=(
        EPS,
        count("mini_batch_size", 16, lambda case: st.sampled_from(_MINI_BATCHES), switched=1),
    ),
    linear_in=(),
    work=lambda n: pairs_and_states({**n, "V": n["K"]}),
    recipes=_ROUNDED,
)
