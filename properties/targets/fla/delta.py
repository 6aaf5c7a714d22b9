"""Delta rules in fla."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.values import GATE_RECIPES
from properties.catalogue.telescope import Telescope
from properties.targets.bounds import equal_widths, fixed_options, power_of_two
from properties.targets.fla.bounds import POSITIVE, WIDE, WIDE_VALUES, at_most
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import (
    CHUNK,
    SCALE,
    Given,
    Mode,
    Modes,
    Outputs,
    each,
    output_and_state,
)
from properties.targets.telescopes import SEEN, carried, channels_telescope, values_telescope


def _removal(kernel: Kernel, given: Given) -> Outputs:
    """RWKV-7 with DPLR's removal keys."""
    kk, a = given.pop("kk"), given.pop("a")
    return output_and_state(kernel, {**given, "a": -kk, "b": kk * a})


def _steps_on_rows(kernel: Kernel, given: Given) -> Outputs:
    """The steps of a token lie on rows beside each other."""
    given["num_householder"] = given["k"].shape[2]
    rows = {n: given[n].flatten(1, 2) for n in ("k", "v", "beta")}
    return output_and_state(kernel, {**given, **rows})


def _heads_as_channels(kernel: Kernel, given: Given) -> Outputs:
    """The value heads that share a head of keys, as channels of one with gates and strengths."""
    G, V = given["k"].shape[2], given["v"].shape[-1]

    def channels(x: Tensor) -> Tensor:
        grouped: Tensor = x.repeat_interleave(V, -1).unflatten(2, (G, -1))
        return grouped

    given["v"] = given["v"].unflatten(2, (G, -1)).flatten(3)
    each = {n: channels(given[n]) for n in ("gv", "beta") if given.get(n) is not None}
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = state.unflatten(1, (G, -1)).transpose(2, 3).flatten(3)
    o, final = kernel(**{**given, **each})
    o = o.unflatten(-1, (-1, V)).flatten(2, 3)
    if not given.get("output_final_state"):
        return o, None
    return o, final.unflatten(-1, (-1, V)).transpose(2, 3).flatten(1, 2)


def _energies(kernel: Kernel, given: Given) -> Outputs:
    """The energies are a state of their own."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = state[..., :-1].contiguous()
        given["initial_A_state"] = state[..., -1].contiguous()
    o, S, A = kernel(**given)
    return o, torch.cat([S, A.unsqueeze(-1)], -1) if given.get("output_final_state") else None


def _energies_of_unit_keys(kernel: Kernel, given: Given) -> Outputs:
    """Energies of a function that always normalizes queries and keys."""
    if not given.pop("use_qk_l2norm_in_kernel", False):
        raise ValueError("use_qk_l2norm_in_kernel: False, expected True of chunk_precond_kda")
    return _energies(kernel, given)


def _ridge(kernel: Kernel, given: Given) -> Outputs:
    """The two parts of the state are apart."""
    state, K = given.pop("initial_state", None), given["k"].shape[-1]
    if state is not None:
        given["h_kk_init"] = state[..., :K].contiguous()
        given["h_kv_init"] = state[..., K:].contiguous()
    o, kk, kv = kernel(**given)
    return o, torch.cat([kk, kv], -1) if given.get("output_final_state") else None


def _linear_model(kernel: Kernel, given: Given) -> Outputs:
    """The bias of the model is a state of its own; rates have another axis."""
    given["eta"] = given["eta"].unsqueeze(-1)
    state = given.pop("initial_state", None)
    if state is not None:
        given["initial_state"] = state[..., :-1, :].contiguous()
        given["initial_state_bias"] = state[..., -1:, :].contiguous()
    o, *parts = kernel(**given)
    return o, torch.cat(parts, -2) if given.get("output_final_state") else None


def _momentum(kernel: Kernel, given: Given) -> Outputs:
    """The state is S and -M, on its first axis; p is as it is given."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = torch.stack([state[:, :, 0], -state[:, :, 1]])
    o, final = kernel(**given, use_qk_l2norm_in_kernel=False, use_p_times_alpha=False)
    if not given.get("output_final_state"):
        return o, None
    return o, torch.stack([final[0], -final[1]], 2)


def _values_channels_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gradient of a gate of each value channel, a difference of sums over values."""
    return (Telescope("dgv", "B T H V", SEEN + carried(case)),)


def _steps_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gradient of the gate before a token's steps, a difference of sums over values."""
    steps = ("B T J H V", "v", "dv")
    return (Telescope("dg", "B T H", (SEEN[0], steps, *carried(case))),)


def _energies_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gradient of the gate of energies, a difference of sums over pairs of tokens."""
    given = "beta_atk" in case.given
    key = ("B T H", "beta_atk", "dbeta_atk") if given else ("B T H K", "k", "dk")
    return (Telescope("dg_atk", "B T H", (key, *carried(case))),)


def _momentum_telescopes(case: Case) -> tuple[Telescope, ...]:
    """Gradients of both gates, differences of sums over pairs of tokens."""
    pairs = (SEEN[0], ("B T H K", "k", "dk"), ("B T H K", "p", "dp"))
    products = (*pairs, *carried(case, "N H M K V"))
    return tuple(Telescope(gate, "B T H", products) for gate in ("dlog_alpha", "dlog_mu"))


def _gentle_gates(case: Case) -> Case:
    return replace(case, values="gaussian") if case.values in GATE_RECIPES else case


def _mini_batches(case: Case) -> Case:
    size = case.options.get("mini_batch_size") or 16
    size = min(64, max(16, power_of_two(size)))
    return case.with_options(mini_batch_size=size)


def _forward_of_packs(case: Case) -> Case:
    grad = case.packed and case.context == "grad"
    return replace(case, context="no_grad") if grad else case


_HALF = ("bfloat16", "float16")
_MOMENTUM: Mapping[str, Any] = {
    "call": _momentum,
    "without": ("cu_seqlens",),
    "conventions": (SCALE, "the momentum has the other sign"),
}
_PRECONDITIONED: Mapping[str, Any] = {
    "call": _energies,
    "needs": ("g_atk", "beta_atk"),
    "forward_only": True,
}
_SAFE = {"gates of -5 or more": _gentle_gates}
_GATES_OF_GDN2 = {"erase": "b", "write": "w"}
MODES: Modes = {
    "delta_rule": {
        **each("delta_rule", "chunk", dtypes=_HALF),
        **each("delta_rule", "fused_recurrent", bounds=POSITIVE),
    },
    "gated_delta_rule": {
        **each("gated_delta_rule", "chunk", telescopes=values_telescope),
        **each("gated_delta_rule", "fused_recurrent", forward_only=True),
        "fused_recurrent_of_channels": Mode(
            "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
            call=_heads_as_channels,
            theirs={"g": "gv"},
            needs=("g",),
            conventions=(SCALE, "value heads are channels of one head"),
            forward_only=True,
        ),
    },
    "kda": {
        **each("kda", "chunk", telescopes=channels_telescope),
        **each("kda", "fused_recurrent", forward_only=True),
        "fused_recurrent_gated_delta_rule": Mode(
            "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
            theirs={"g": "gk"},
            needs=("g",),
            forward_only=True,
        ),
        "chunk_of_32": Mode(
            "fla.ops.kda:chunk_kda",
            fixed={"chunk_size": 32},
            tokens=32,
            since=(0, 5, 1),
            telescopes=channels_telescope,
        ),
        "chunk_safe_gate": Mode(
            "fla.ops.kda:chunk_kda",
            fixed={"safe_gate": True},
            tokens=CHUNK,
            bounds=_SAFE,
            telescopes=channels_telescope,
        ),
    },
    "dplr": {
        "chunk_safe_gate": Mode(
            "fla.ops.generalized_delta_rule:chunk_dplr_delta_rule",
            fixed={"safe_gate": True},
            tokens=CHUNK,
            bounds={**WIDE_VALUES, **_SAFE},
            telescopes=channels_telescope,
        ),
        **each(
            "generalized_delta_rule",
            "chunk",
            name="dplr_delta_rule",
            bounds=WIDE_VALUES,
            telescopes=channels_telescope,
        ),
        **each(
            "generalized_delta_rule", "fused_recurrent", name="dplr_delta_rule", forward_only=True
        ),
    },
    "rwkv7": {
        **each(
            "rwkv7",
            "chunk",
            call=_removal,
            ours=("kk",),
            bounds=WIDE_VALUES,
            telescopes=channels_telescope,
        ),
        **each("rwkv7", "fused_recurrent", call=_removal, ours=("kk",), forward_only=True),
        **each("rwkv7", "fused_mul_recurrent", forward_only=True),
    },
    "iplr": {
        **each("generalized_delta_rule", "chunk", name="iplr_delta_rule", forward_only=True),
        **each(
            "generalized_delta_rule", "fused_recurrent", name="iplr_delta_rule", bounds=POSITIVE
        ),
    },
    "gated_delta_product": each(
        "gated_delta_product",
        "chunk",
        call=_steps_on_rows,
        dtypes=_HALF,
        telescopes=_steps_telescope,
    ),
    "gdn2": {
        **each("gdn2", "chunk", theirs=_GATES_OF_GDN2, telescopes=channels_telescope),
        **each("gdn2", "fused_recurrent", theirs=_GATES_OF_GDN2, forward_only=True),
    },
    "comba": {
        **each("comba", "chunk", needs=("beta",), replaces=("p",), telescopes=values_telescope),
        **each("comba", "fused_recurrent", replaces=("p",), forward_only=True),
    },
    "gated_oja_rule": {
        **each("gated_oja_rule", "chunk", bounds=WIDE, telescopes=_values_channels_telescope),
        **each(
            "gated_oja_rule",
            "fused_recurrent",
            forward_only=True,
            # fla asserts this bound.
            bounds={"V of 128 at most": at_most(128, "V")},
        ),
    },
    "momentum_delta_rule": {
        **each(
            "momentum_delta_rule",
            "chunk",
            dtypes=_HALF,
            telescopes=_momentum_telescopes,
            **_MOMENTUM,
        ),
        **each("momentum_delta_rule", "fused_recurrent", **_MOMENTUM),
    },
    "mesa_net": each(
        "mesa_net",
        "chunk",
        call=_ridge,
        ours=("initial_state",),
        conventions=("queries and keys are float16",),
        dtypes=_HALF,
        bounds={"K = V of 128 at most": lambda case: equal_widths(at_most(128)(case))},
        telescopes=values_telescope,
    ),
    "ttt_linear": each(
        "ttt",
        "chunk",
        "fused_chunk",
        name="ttt_linear",
        call=_linear_model,
        theirs={"weight": "w", "bias": "b", "mini_batch_size": "chunk_size"},
        bounds={
            **POSITIVE,
            "K of 128 at most": at_most(128),
            "mini-batches of 16, 32 or 64 tokens": _mini_batches,
            # fla asserts this bound.
            "no gradients of a pack": _forward_of_packs,
        },
    ),
    "precond_gated_delta_rule": {
        **each(
            "precond_gated_delta_rule",
            "chunk",
            call=_energies,
            telescopes=lambda case: (*values_telescope(case), *_energies_telescope(case)),
        ),
        **each("precond_gated_delta_rule", "fused_recurrent", **_PRECONDITIONED),
    },
    "precond_kda": {
        **each(
            "precond_kda",
            "chunk",
            call=_energies_of_unit_keys,
            ours=("use_qk_l2norm_in_kernel",),
            bounds={"normalized queries and keys": fixed_options(use_qk_l2norm_in_kernel=True)},
            telescopes=lambda case: (*channels_telescope(case), *_energies_telescope(case)),
        ),
        **each("precond_kda", "fused_recurrent", **_PRECONDITIONED),
    },
}
