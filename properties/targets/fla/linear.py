"""Linear attention in fla."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.catalogue.telescope import Telescope
from properties.targets.bounds import changed_dims, power_of_two
from properties.targets.fla.bounds import WIDE, WIDE_VALUES, at_least, powers_of_two
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import (
    SCALE,
    Given,
    Mode,
    Modes,
    Outputs,
    each,
    output_alone,
    output_and_state,
)
from properties.targets.telescopes import SEEN, carried, channels_telescope, values_telescope


def _normalized(kernel: Kernel, given: Given) -> Outputs:
    """Our state of a normalized op has another column; fla's is a pair."""
    if not given.setdefault("normalize", False):
        return output_and_state(kernel, given)
    if given.get("initial_state") is not None:
        whole = given["initial_state"]
        given["initial_state"] = (whole[..., :-1].contiguous(), whole[..., -1].unsqueeze(1))
    o, pair = kernel(**given)
    # A float32 sum of keys makes the outputs float32.
    o = o.to(given["q"].dtype)
    if not given["output_final_state"]:
        return o, None
    state, keys = pair
    return o, torch.cat([state, keys.squeeze(1).unsqueeze(-1).to(state.dtype)], -1)


def _slots(kernel: Kernel, given: Given) -> Outputs:
    """The state of slots is a pair of the keys, transposed, and the values.

    Without gates fla derives some from the weights of the slots.
    """
    if given.get("g") is None:
        given["g"] = torch.zeros_like(given["s"])
    state, K = given.get("initial_state"), given["k"].shape[-1]
    if state is not None:
        keys = state[..., :K].mT.contiguous()
        given["initial_state"] = (keys, state[..., K:].contiguous())
    o, final = kernel(**given)
    return o, torch.cat([final[0].mT, final[1]], -1) if given.get("output_final_state") else None


def _waves(kernel: Kernel, given: Given) -> Outputs:
    """The state is that of waves at rest, keys transposed, and the turns so far."""
    waves, K = _orthonormal_waves(given["readout"]), given["k"].shape[-1]
    before = given.get("initial_state")
    if before is not None:
        S = waves.T @ before
        turns = before.new_zeros(before.shape[:2])
        given["initial_state"] = (S[..., :K].mT.contiguous(), S[..., K:].contiguous(), turns)
    o, final = kernel(**given)
    if not given.get("output_final_state"):
        return o, None
    keys, values, turns = final
    cos, sin = torch.cat([keys.mT, values], -1).unflatten(2, (-1, 2)).unbind(3)
    f = torch.arange(cos.shape[2], device=cos.device)
    angles = (2 * math.pi / len(waves) * f * turns.double()[..., None])[..., None].to(cos.dtype)
    now = [
        torch.cos(angles) * cos - torch.sin(angles) * sin,
        torch.sin(angles) * cos + torch.cos(angles) * sin,
    ]
    S = waves @ torch.stack(now, 3).flatten(2, 3)
    if before is not None:
        # To the waves and back a state is rounded.
        bounds = given.get("cu_seqlens")
        none = given["q"].shape[1] == 0 if bounds is None else bounds.diff() == 0
        S = torch.where(torch.as_tensor(none, device=S.device).view(-1, 1, 1, 1), before, S)
    return o, S


def _orthonormal_waves(readout: Tensor) -> Tensor:
    """fla's basis of a ring `[M, M + 1]`: cosine and sine of each wave, the first sine 0."""
    M = readout.shape[-1]
    r = torch.arange(M, dtype=torch.float64, device=readout.device)
    angles = 2 * math.pi / M * r[:, None] * r[: M // 2 + 1]
    both = torch.stack([torch.cos(angles), torch.sin(angles)], -1) * math.sqrt(2 / M)
    both[:, 0] /= math.sqrt(2)
    return both.flatten(1).float()


def _log_sum(kernel: Kernel, given: Given) -> Outputs:
    """The last column of a state is apart, with an axis of one token."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = (state[..., :-1].contiguous(), state[..., -1].unsqueeze(1))
    o, (S, z) = kernel(**given)
    if not given.get("output_final_state"):
        return o, None
    return o, torch.cat([S, z.squeeze(1).unsqueeze(-1).to(S.dtype)], -1)


def _shared_exponent(kernel: Kernel, given: Given) -> Outputs:
    """The state is m, 1 and their exponent z, behind an axis of one token, and required."""
    state, asked = given.pop("initial_state", None), given.pop("output_final_state", False)
    if state is None:
        m = given["k"].new_zeros(given["k"].shape[0], given["k"].shape[2], dtype=torch.float32)
        pair, z = (m, m), m - torch.inf
    else:
        m, z = state.unbind(1)
        pair = (m, torch.ones_like(m))
    with torch.autograd.graph.saved_tensors_hooks(_with_the_last, lambda x: x):
        o, final = kernel(**given, state=torch.stack([*pair, z], 1).unsqueeze(2))
    if not asked:
        return o, None
    alpha, beta, epsilon = final[:, :, 0].float().unbind(1)
    seen = beta > 0
    m = torch.where(seen, alpha / torch.where(seen, beta, 1.0), 0.0)
    return o, torch.stack([m, epsilon + beta.log()], 1)


def _with_the_last(saved: Tensor) -> Tensor:
    """All states: RWKV-4 saves a view without the last one, and reads that one as well."""
    if saved.ndim != 4:
        return saved
    B, three, T, D = saved.shape
    return saved.as_strided((B, three, T + 1, D), saved.stride(), saved.storage_offset())


def _features(kernel: Kernel, given: Given) -> Outputs:
    """Maps other than elu are modules. Hedgehog's layer is the identity, and doubles x."""
    x, kind, nu = given["x"], given["kind"], given["nu"]
    if type(nu) is not int or nu < 1:
        raise ValueError(f"nu: {nu!r}, expected a count, which other maps than dpfp do not read")
    module = import_module("fla.modules.feature_map")
    made: dict[str, Callable[[], Kernel]] = {
        "elu": lambda: kernel,
        "relu": lambda: module.ReLUFeatureMap(),
        "hedgehog": lambda: module.HedgehogFeatureMap(x.shape[-1]).to(x),
        "dpfp": lambda: module.DPFPFeatureMap(x.shape[-1], nu),
    }
    y: Tensor = made[kind]()(x / 2 if kind == "hedgehog" else x)
    return y


def _keys_telescope(case: Case) -> tuple[Telescope, ...]:
    """Gate gradients as the difference of `Σ q ∘ dq` and `Σ k ∘ dk`."""
    reverse = bool(case.options.get("reverse"))
    keys = (("B T H K", "q", "dq"), ("B T H K", "k", "dk"), *carried(case))
    heads = "B T H" if case.op == "simple_gla" else "B T H K"
    return (
        Telescope("dg", heads, keys, reverse),
        Telescope("dgv", "B T H V", SEEN + carried(case), reverse),
    )


def _slots_telescope(case: Case) -> tuple[Telescope, ...]:
    """Two passes of gated linear attention, over the slots' keys and values: of each, sums over
    slots of the weights times their gradients are those over keys and over values.
    """
    read = (("B T H K", "q", "dq"), ("B T H V", "gradient of o", "o"), ("B T H M", "s", "ds"))
    return (Telescope("dg", "B T H M", (*read, *carried(case, "N H M K+V"))),)


def _ring_telescope(case: Case) -> tuple[Telescope, ...]:
    """The telescope of the second pass, over values; those of keys are no results."""
    return (Telescope("dg", "B T H", (*SEEN, *carried(case, "N H M K+V"))),)


def _a_block_of_keys(case: Case) -> Case:
    return replace(case, dims={**powers_of_two(case).dims, "K": 64})


def _even_in_16_bits(case: Case, names: str = "KV") -> Case:
    if case.dtype == "float32":
        return case
    even = {n: case.dims[n] + case.dims[n] % 2 for n in names}
    return case.with_dims(**even)


def _even_keys_in_16_bits(case: Case) -> Case:
    """Values take this kernel beside more than 128 waves alone."""
    return _even_in_16_bits(case, "KV" if case.dims["M"] > 127 else "K")


def _slots_of_a_dot(case: Case) -> Case:
    slots = max(16, power_of_two(case.dims["M"]))
    return replace(case, dims={**at_least(9, "K", "V")(case).dims, "M": slots})


def _slots_below_a_power_of_two(case: Case) -> Case:
    waves = max(16, power_of_two(case.dims["M"]))
    return case.with_dims(M=waves - 1)


def _another_map(case: Case) -> Case:
    if case.options.get("kind") != "taylor":
        return case
    return case.with_options(kind="elu")


_WIDE_SLOTS = {"K, V and M above 8": at_least(9, "K", "V", "M")}
_RWKV6: Mapping[str, Any] = {"earlier": {"r": "q", "w": "g"}, "telescopes": channels_telescope}
_PAIRED = (
    SCALE,
    "the state of a normalized op is a pair: its last column is apart, in the keys' dtype",
    "outputs are float32 beside a pair in float32; they become the dtype of q",
)
_RING_OF_A_DOT = {
    "16, 32, 64, ... waves, the first sine among them": _slots_below_a_power_of_two,
    "even K in 16 bits, and V beside more than 128 waves": _even_keys_in_16_bits,
}
_WIDE_RING = {"9 slots or more": changed_dims("M", lambda n: n + 8 if n < 9 else n)}
_RING: Mapping[str, Any] = {
    "call": _waves,
    "fixed": {"q_norm_eps": 1e-6, "k_norm_eps": 1e-6},
    "conventions": (SCALE, "the state has waves at rest, keys transposed, and the turns so far"),
}
_EVEN = {"even K and V in 16 bits": _even_in_16_bits}
MODES: Modes = {
    "linear_attn": {
        **each("linear_attn", "chunk", call=_normalized, conventions=_PAIRED, bounds=_EVEN),
        **each(
            "linear_attn", "fused_chunk", "fused_recurrent", call=_normalized, conventions=_PAIRED
        ),
    },
    "simple_gla": {
        **each("simple_gla", "chunk", bounds=_EVEN, telescopes=_keys_telescope),
        **each("simple_gla", "fused_chunk", "fused_recurrent", telescopes=_keys_telescope),
        **each(
            "simple_gla", "parallel", call=output_alone, bounds=WIDE, telescopes=_keys_telescope
        ),
    },
    "retention": {
        **each("retention", "chunk", bounds=_EVEN),
        **each("retention", "fused_chunk", "fused_recurrent"),
        **each("retention", "parallel", call=output_alone, bounds=WIDE),
    },
    "lightning_attn": {
        **each("lightning_attn", "chunk", bounds=_EVEN),
        **each("lightning_attn", "fused_recurrent"),
    },
    "gla": {
        **each("gla", "chunk", bounds=WIDE_VALUES, telescopes=_keys_telescope),
        **each("gla", "fused_chunk", telescopes=_keys_telescope),
        **each("gla", "fused_recurrent", theirs={"g": "gk"}, telescopes=_keys_telescope),
    },
    "rwkv6": {
        **each("rwkv6", "chunk", bounds=WIDE_VALUES, **_RWKV6),
        **each("rwkv6", "fused_recurrent", **_RWKV6),
    },
    "hgrn": {
        **each("hgrn", "chunk", conventions=()),
        **each("hgrn", "fused_recurrent", output_dtypes={"final_state": "case"}, conventions=()),
    },
    "rwkv4": each(
        "rwkv4",
        "fused_recurrent",
        call=_shared_exponent,
        ours=("initial_state", "output_final_state"),
        conventions=("the state is (m, 1) times exp(z), and required",),
    ),
    "gsa": {
        **each("gsa", "chunk", call=_slots, bounds=_WIDE_SLOTS, telescopes=_slots_telescope),
        **each("gsa", "fused_recurrent", call=_slots, telescopes=_slots_telescope),
    },
    "cyfa": {
        **each("cyfa", "chunk", bounds=_RING_OF_A_DOT, telescopes=_ring_telescope, **_RING),
        **each("cyfa", "fused_recurrent", bounds=_WIDE_RING, forward_only=True, **_RING),
    },
    "lightnet": {
        **each("lightnet", "chunk", call=_log_sum, bounds=WIDE_VALUES),
        **each("lightnet", "fused_recurrent", call=_log_sum),
    },
    "abc": each(
        "abc",
        "chunk",
        call=output_alone,
        bounds={"K and V above 8, M a power of two from 16": _slots_of_a_dot},
        without=("initial_state", "output_final_state"),
        unstated={"splitting": "the state lacks the sums of weights"},
    ),
    "log_linear_attn": each(
        "log_linear_attn",
        "chunk",
        call=output_alone,
        bounds={"K = 64, V a power of two": _a_block_of_keys},
        telescopes=values_telescope,
    ),
    "feature_map": {
        "fused": Mode(
            "fla.modules.activations:elu_p1 fla.modules.feature_map:DPFPFeatureMap",
            call=_features,
            ours=("x", "kind", "nu"),
            conventions=("other maps than elu are modules", "Hedgehog's layer is the identity"),
            bounds={"another map than taylor": _another_map},
        )
    },
}
