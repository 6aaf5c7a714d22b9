"""The functions in PyTorch that models run where no kernel is installed, behind our signatures.

Later releases hand a call to another package, such as fla, if that is installed; here the function
in PyTorch runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.adapter import Implementation
from properties.targets.bare import Absent
from properties.targets.bounds import fixed_dims, fixed_options
from properties.targets.telescopes import channels_telescope, values_telescope
from properties.targets.transformers.release import lacks, model_of

Pair = tuple[Tensor, Tensor | None]

_REQUIRED = "gates and strengths are required; none becomes zeros or ones"
_UNCHECKED = {"rejection": "its model checks nothing, and sizes are broadcast"}
_NO_GROUPS = {"as many heads of keys as of values": fixed_dims(R=1)}
_FLOAT32_STATE = {"final_state": "float32"}
_CHUNK = 64


def _function(model: str, *names: str) -> Callable[..., Any]:
    """The first of these functions that the model has."""
    module = model_of(model)
    for name in names:
        # Earlier releases have None for a function of a package that is not installed.
        if found := getattr(module, name, None):
            run: Callable[..., Any] = unwrap(found)
            return run
    raise Absent(f"{model} has no {names[0]}")


def _delta_rule(model: str, *names: str) -> Implementation:
    """The gated delta rule, or that of Kimi, by one decay or one for each channel."""
    run = _function(model, *names)
    one_decay = "gated" in names[0]

    def rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, beta: Tensor | None = None, *,
        use_qk_l2norm_in_kernel: bool = False, initial_state: Tensor | None = None,
        output_final_state: bool = False,
    ) -> Pair:  # fmt: skip
        sizes = v.shape[:3] if one_decay else (*v.shape[:3], k.shape[3])
        o, state = run(
            q, k, v,
            g=v.new_zeros(sizes, dtype=torch.float32) if g is None else g,
            beta=v.new_ones(v.shape[:3]) if beta is None else beta,
            initial_state=initial_state,
            output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )  # fmt: skip
        return o, state

    return Implementation(
        rule,
        conventions=(_REQUIRED,),
        output_dtypes=_FLOAT32_STATE,
        tokens=_CHUNK,
        bounds={} if _takes_groups(rule) else _NO_GROUPS,
        unstated=_UNCHECKED,
        telescopes=values_telescope if one_decay else channels_telescope,
    )


def _takes_groups(rule: Callable[..., Pair]) -> bool:
    """Whether it repeats keys itself, as models of earlier releases do before they call it."""
    q, v = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 4, 2)
    try:
        rule(q, q, v)
    except (RuntimeError, ValueError):
        return False
    return True


def _mamba2() -> Implementation:
    run = _function("mamba2", "mamba2_chunk_scan")

    def mamba2(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, *,
        initial_state: Tensor | None = None, output_final_state: bool = False,
    ) -> Pair:  # fmt: skip
        state = None if initial_state is None else initial_state.transpose(-1, -2)
        y, final = run(
            x, dt, A, B, C, _CHUNK, D=D, initial_states=state, return_final_states=True
        )  # fmt: skip
        return y.to(x.dtype), final.transpose(-1, -2).contiguous() if output_final_state else None

    return Implementation(
        mamba2,
        conventions=(
            "the state is [N, H, V, K]",
            "outputs are float32; they become the dtype of x",
        ),
        output_dtypes=_FLOAT32_STATE,
        tokens=_CHUNK,
        unstated=_UNCHECKED,
    )


def _mamba2_in_the_mixer(model: str, mixer: str) -> Implementation:
    """The scan of a layer, without its projections, convolution and norm."""
    forward = unwrap(getattr(model_of(model), mixer).torch_forward)

    def mamba2(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None
    ) -> Tensor:
        _, _, H, V = x.shape
        G, K = B.shape[2:]
        rates, steps = A.detach().double(), dt.detach().double()
        layer = SimpleNamespace(
            num_heads=H,
            head_dim=V,
            n_groups=G,
            ssm_state_size=K,
            intermediate_size=H * V,
            conv_dim=H * V + 2 * G * K,
            chunk_size=16,
            time_step_limit=(0.0, float("inf")),
            time_step_min=0.0,
            use_conv_bias=False,
            layer_idx=0,
            A_log=(-rates).log().float(),
            dt_bias=torch.zeros(H, dtype=x.dtype),
            D=x.new_zeros(H) if D is None else D,
            act=lambda y: y,
            in_proj=lambda y: y,
            conv1d=lambda y: y,
            norm=lambda y, gate: y,
            out_proj=lambda y: y,
        )
        before_softplus = (steps + (-(-steps).expm1()).log()).to(x.dtype)
        gate = torch.zeros_like(x).flatten(2)
        given = torch.cat([gate, *(y.flatten(2) for y in (x, B, C)), before_softplus], -1)
        y: Tensor = forward(layer, given)
        return y.view_as(x)

    x, one = torch.ones(1, 1, 1, 1), torch.ones(1)
    if why := lacks(partial(mamba2, x, x[..., 0], -one, x, x)):
        raise Absent(why)
    return Implementation(
        mamba2,
        conventions=("rates and steps are given as log(-A) and softplus^-1(dt)",),
        dtypes=("float32",),
        constants=("A", "dt"),
        tokens=16,
        unstated=_UNCHECKED,
    )


def _selective_scan() -> Implementation:
    run = _function("mamba", "mamba_selective_scan")

    def selective_scan(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, *,
        output_final_state: bool = False,
    ) -> Pair:  # fmt: skip
        y, state = run(
            *(each.transpose(1, 2) for each in (x, dt)), A,
            *(each.transpose(1, 2) for each in (B, C)), D=D, return_last_state=True,
        )  # fmt: skip
        return y.transpose(1, 2).to(x.dtype), state if output_final_state else None

    return Implementation(
        selective_scan,
        conventions=("tensors are [B, D, T]", "outputs become the dtype of x"),
        output_dtypes=_FLOAT32_STATE,
        unstated=_UNCHECKED,
    )


def _rwkv4() -> Implementation:
    run = _function("rwkv", "rwkv_linear_attention_cpu")

    def rwkv4(
        k: Tensor, v: Tensor, w: Tensor, u: Tensor, *, initial_state: Tensor | None = None,
        output_final_state: bool = False,
    ) -> Pair:  # fmt: skip
        state = None
        if initial_state is not None:
            m, z = initial_state.float().unbind(1)
            state = [m, torch.ones_like(m), z]
        o, final = run(w, u, k, v, state=state, return_state=True)
        if not output_final_state:
            return o, None
        num, den, largest = final
        seen = den > 0
        m = torch.where(seen, num / torch.where(seen, den, 1.0), 0.0)
        return o, torch.stack([m, largest + den.log()], 1)

    return Implementation(
        rwkv4,
        conventions=("the state is a numerator, a denominator and their exponent",),
        output_dtypes=_FLOAT32_STATE,
        unstated=_UNCHECKED,
    )


def _convolution() -> Implementation:
    run = _function("qwen3_next", "causal_conv1d_fn")

    def short_conv(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
    ) -> Tensor:
        y: Tensor = run(x.transpose(1, 2), weight, bias, activation=activation)
        return y.transpose(1, 2)

    return Implementation(short_conv, conventions=("tensors are [B, D, T]",), unstated=_UNCHECKED)


def _convolution_update() -> Implementation:
    run = _function("qwen3_next", "causal_conv1d_update", "torch_causal_conv1d_update")

    def short_conv(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None,
        initial_state: Tensor | None = None, output_final_state: bool = False,
    ) -> Pair:  # fmt: skip
        B, _, D = x.shape
        state = x.new_zeros(B, weight.shape[1], D)
        if initial_state is not None:
            state = torch.cat([state[:, :1], initial_state.to(x.dtype)], 1)
        state = state.transpose(1, 2).contiguous()
        y = run(x.transpose(1, 2), state, weight, bias, activation)
        final = state[..., 1:].transpose(1, 2).contiguous() if output_final_state else None
        return y.transpose(1, 2), final

    return Implementation(
        short_conv,
        conventions=("tensors are [B, D, T]", "the state has a token for each tap, in place"),
        constants=("initial_state", "final_state"),
        output_dtypes={"final_state": "case"},
        bounds={"a token or more": _some_tokens},
        unstated=_UNCHECKED,
    )


def _some_tokens(case: Case) -> Case:
    return replace(case, lengths=tuple(max(n, 1) for n in case.lengths))


def _gated_norm(model: str, kind: str, gate_first: bool) -> Implementation:
    forward = unwrap(getattr(model_of(model), kind).forward)

    def rms_norm_gated(
        x: Tensor, z: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6,
        gate_first: bool = gate_first,
    ) -> Tensor:  # fmt: skip
        layer = SimpleNamespace(
            weight=x.new_ones(x.shape[-1]) if weight is None else weight,
            variance_epsilon=eps,
            group_size=x.shape[-1],
            activation="silu",
        )
        y: Tensor = forward(layer, x, z)
        return y.to(x.dtype)

    return Implementation(
        rms_norm_gated,
        bounds={f"gate_first is {gate_first}": fixed_options(gate_first=gate_first)},
        unstated=_UNCHECKED,
    )


_GATED = partial(_delta_rule, "qwen3_next")
_KIMI = partial(_delta_rule, "kimi_linear")

DECLARED: Mapping[str, Mapping[str, Callable[[], Implementation]]] = {
    "gated_delta_rule": {
        "qwen3_next_chunk": partial(_GATED, "torch_chunk_gated_delta_rule"),
        "qwen3_next_recurrent": partial(_GATED, "torch_recurrent_gated_delta_rule"),
    },
    "kda": {
        "kimi_linear_chunk": partial(_KIMI, "chunk_kimi_delta_attention"),
        "kimi_linear_recurrent": partial(_KIMI, "recurrent_kimi_delta_attention"),
    },
    "mamba2": {
        "mamba2_scan": _mamba2,
        "mamba2": partial(_mamba2_in_the_mixer, "mamba2", "Mamba2Mixer"),
        "bamba": partial(_mamba2_in_the_mixer, "bamba", "BambaMixer"),
    },
    "selective_scan": {"mamba": _selective_scan},
    "rwkv4": {"rwkv": _rwkv4},
    "short_conv": {"qwen3_next": _convolution, "qwen3_next_update": _convolution_update},
    "rms_norm_gated": {
        "qwen3_next": partial(_gated_norm, "qwen3_next", "Qwen3NextRMSNormGated", False),
        "mamba2": partial(_gated_norm, "mamba2", "MambaRMSNormGated", True),
    },
}
