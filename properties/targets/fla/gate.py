"""Gates in fla."""

from inspect import signature

import torch
from torch import Tensor

from properties.targets.bounds import fixed_dims
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import Given, Mode, Modes, Outputs

_GATE_OF_0_4 = {"A_log": "A", "dt_bias": "g_bias"}


def _gate(kernel: Kernel, given: Given) -> Outputs:
    """Rates are required, except beside a bound; biases are a row."""
    if given.get("A_log") is None:
        given["A_log"] = given["g"].new_zeros(given["g"].shape[2], dtype=torch.float32)
    if given.get("dt_bias") is not None:
        given["dt_bias"] = given["dt_bias"].flatten()
    taken = signature(kernel).parameters
    if "head_k_dim" in taken:
        # Release 0.4.0.
        given |= {"head_k_dim": given["g"].shape[-1], "g": given["g"].flatten(2)}
        given |= {old: given.pop(now) for now, old in _GATE_OF_0_4.items() if now in given}
    g: Tensor = kernel(**given)
    return g


def _gate_of_heads(kernel: Kernel, given: Given) -> Outputs:
    g = _gate(kernel, {**given, "g": given["g"].squeeze(-1)})
    assert isinstance(g, Tensor)
    return g.unsqueeze(-1)


def _numbers(kernel: Kernel, given: Given) -> Outputs:
    """A function of one tensor, by place."""
    if given.pop("allow_neg_eigval", False):
        raise ValueError("allow_neg_eigval: True, expected False, as fla has no such option")
    y: Tensor = kernel(given["x"])
    return y


MODES: Modes = {
    "decay_gate": {
        "fused": Mode(
            "fla.ops.kda.gate:fused_kda_gate",
            call=_gate,
            theirs={"x": "g"},
            ours=("A_log", "dt_bias"),
            conventions=(),
        ),
        "fused_of_heads": Mode(
            "fla.ops.gated_delta_rule.gate:fused_gdn_gate",
            call=_gate_of_heads,
            theirs={"x": "g"},
            conventions=(),
            bounds={"one channel": fixed_dims(D=1)},
        ),
    },
    "strength_gate": {
        "fused": Mode(
            "fla.modules.activations:sigmoid",
            call=_numbers,
            ours=("x",),
            output_dtypes={"beta": "case"},
            conventions=(),
        )
    },
}
