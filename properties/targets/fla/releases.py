"""Limits of earlier releases, for the modes that are declared for the latest."""

from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

from torch import Tensor

from properties.cases.case import Case
from properties.catalogue import OPS
from properties.targets.bounds import Bound, changed_dims, fixed_dims, fixed_options, power_of_two
from properties.targets.fla.bounds import POSITIVE, all_in_the_dtype, at_least, powers_of_two
from properties.targets.fla.library import Kernel, release
from properties.targets.fla.mode import Given, Mode, Outputs, output_alone
from properties.targets.fla.softmax import float32_reflections

# Op, mode → the first release in which value heads share a head of keys.
_SHARED_SINCE = {
    ("gated_delta_rule", "fused_recurrent"): (0, 3),
    ("gated_delta_rule", "chunk"): (0, 5),
    ("kda", "chunk"): (0, 5),
    ("comba", "chunk"): (0, 6),
}
# Op, mode → the first release that takes float32.
_FLOAT32_SINCE = {("gated_delta_rule", "chunk"): (0, 4), ("iplr", "chunk"): (0, 3)}


def as_released(op: str, mode: str, declared: Mode, kernel: Kernel) -> Mode:
    """Limit a mode to what the installed release has of it."""
    bounds: dict[str, Bound] = {}
    if op == "feature_map" and getattr(kernel, "__name__", "") != "elu_p1":
        bounds["another map than elu"] = _another_map_than_elu
    if op == "linear_attn" and release() < (0, 5):
        bounds["no state where normalized"] = _no_state_where_normalized
    if op == "log_linear_attn" and release() < (0, 6):
        bounds["one head of keys"] = fixed_dims(G=1)
    if release() < _SHARED_SINCE.get((op, mode), ()):
        bounds["a head of keys for each of values"] = fixed_dims(R=1)
    if (0, 3) <= release() < (0, 3, 1) and {"K", "V"} <= OPS[op].dims.keys():
        bounds["K and V at least 16"] = at_least(16, "K", "V")
    if op == "path_attn" and release() < (0, 4):
        kept = {n: b for n, b in declared.bounds.items() if b is not float32_reflections}
        declared = replace(declared, bounds=kept)
        bounds["w, beta and g in the dtype of q"] = all_in_the_dtype
    dtypes = declared.dtypes
    if release() < _FLOAT32_SINCE.get((op, mode), ()):
        dtypes = tuple(dtype for dtype in dtypes if dtype != "float32")
    declared = replace(declared, bounds={**declared.bounds, **bounds}, dtypes=dtypes)
    return _before_0_3(op, mode, declared, kernel) if release() < (0, 3) else declared


def _before_0_3(op: str, mode: str, declared: Mode, kernel: Kernel) -> Mode:
    """The mode in releases up to 0.2.

    Head dims are powers of two from 16, gated recurrences pass no gradient through the final state,
    recurrences of delta rules take positive scales only, and a convolution returns no state.
    """
    taken = signature(kernel).parameters
    if (op, mode) == ("short_conv", "fused") and "initial_state" not in taken:
        bounds = {"W a power of two": changed_dims("W", power_of_two)}
        return replace(declared, call=output_alone, bounds=bounds, whole=lambda op: op)
    if (op, mode) == ("gla", "fused_chunk") and "head_first" not in taken:
        declared = replace(declared, call=_heads_first)
    bounds = {**declared.bounds}
    if {"K", "V"} <= OPS[op].dims.keys():
        bounds["K and V powers of two, at least 16"] = powers_of_two
    recurrent = mode == "fused_recurrent"
    if recurrent and op in ("gated_delta_rule", "dplr", "rwkv7"):
        bounds.update(POSITIVE)
    changed = replace(declared, bounds=bounds)
    if recurrent and op in ("gla", "simple_gla"):
        alone = replace(changed, constants=("final_state",))
        return replace(alone, telescopes=lambda case: declared.telescopes(_without_state(case)))
    return changed


def with_heads_first(kernel: Kernel) -> Kernel:
    """A function of releases before 0.2 as it is called by default: heads before tokens."""

    @wraps(kernel)
    def turned(**given: Any) -> Any:
        sequences = {
            name: x.transpose(1, 2).contiguous()
            for name, x in given.items()
            if isinstance(x, Tensor) and x.ndim > 2 and "state" not in name
        }
        returned = kernel(**{**given, **sequences}, head_first=True)
        if isinstance(returned, Tensor):
            return returned.transpose(1, 2)
        return (returned[0].transpose(1, 2), *returned[1:])

    return turned


def _heads_first(kernel: Kernel, given: Given) -> Outputs:
    """Output and final state of a function with heads before tokens and no argument for that."""
    tokens = {name: given[name].transpose(1, 2) for name in ("q", "k", "v", "g")}
    o, state = kernel(**{**given, **tokens})
    return o.transpose(1, 2), state


def _another_map_than_elu(case: Case) -> Case:
    kind = case.options.get("kind")
    return case.with_options(kind="relu" if kind == "elu" else kind)


def _no_state_where_normalized(case: Case) -> Case:
    if not case.options.get("normalize"):
        return case
    given = tuple(n for n in case.given if n != "initial_state")
    return replace(case, given=given).with_options(output_final_state=False)


_without_state = fixed_options(output_final_state=False)
