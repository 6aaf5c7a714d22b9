"""Norms in fla."""

import torch
from torch import Tensor

from properties.targets.bounds import fixed_options
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import Given, Mode, Modes, Outputs, output_alone


def _gated_norm(kernel: Kernel, given: Given) -> Outputs:
    """Weights and biases may be None, but are required; a gate that comes first is another op."""
    if given.pop("gate_first", False):
        raise ValueError("gate_first: True, expected False, as fla normalizes first")
    y: Tensor = kernel(**{"bias": None, **given})
    return y


def _norm_of_mamba(kernel: Kernel, given: Given) -> Outputs:
    """The order of the norm and its gate; a norm without biases takes None."""
    given["norm_before_gate"] = not given.pop("gate_first", False)
    y: Tensor = kernel(**{"bias": None, **given})
    return y


def _norm_and_linear(kernel: Kernel, given: Given) -> Outputs:
    """The factors of channels are the diagonal of a linear layer behind the gate."""
    if given.pop("gate_first", False):
        raise ValueError("gate_first: True, expected False, as fla normalizes first")
    weight = given.pop("weight", None)
    x = given["x"]
    given["norm_weight"] = x.new_ones(x.shape[-1])
    given |= {"norm_bias": None, "linear_bias": None}
    weight = given["norm_weight"] if weight is None else weight
    y: Tensor = kernel(**given, linear_weight=torch.diag(weight))
    return y


def _functions(name: str, of_0_1: str) -> str:
    module = "fla.modules.fused_norm_gate"
    return f"fla.modules.norm.fused_norm_gate:{name} {module}:{name} {module}:{of_0_1}"


def _gated(name: str) -> Mode:
    return Mode(
        _functions(name, name.replace("_gated", "_swish_gate_fn")),
        call=_gated_norm,
        theirs={"z": "g"},
        earlier={"z": "o"},
        ours=("gate_first",),
        conventions=(),
        bounds={"the gate last": fixed_options(gate_first=False)},
    )


def _of_mamba(name: str) -> Mode:
    return Mode(
        f"fla.modules.norm.layernorm_gated:{name} fla.modules.layernorm_gated:{name}",
        call=_norm_of_mamba,
        ours=("gate_first",),
        conventions=("gate_first is the opposite of norm_before_gate",),
    )


def _before_linear(name: str) -> Mode:
    return Mode(
        _functions(name, f"{name}_fn"),
        call=_norm_and_linear,
        theirs={"z": "g"},
        earlier={"z": "o"},
        ours=("gate_first", "weight"),
        without=("bias",),
        conventions=("the weight is the diagonal of a linear layer, the norm's weight is 1",),
        dtypes=("float32",),
        bounds={"the gate last": fixed_options(gate_first=False)},
    )


MODES: Modes = {
    "rms_norm_gated": {
        "fused": _gated("rms_norm_gated"),
        "linear": _before_linear("rms_norm_swish_gate_linear"),
        "mamba": _of_mamba("rmsnorm_fn"),
    },
    "layer_norm_gated": {
        "fused": _gated("layer_norm_gated"),
        "linear": _before_linear("layer_norm_swish_gate_linear"),
        "mamba": _of_mamba("layernorm_fn"),
    },
    "l2norm": {
        "fused": Mode(
            "fla.modules.l2norm:l2norm fla.modules.l2norm:l2_norm",
            call=output_alone,
            conventions=(),
        )
    },
}
