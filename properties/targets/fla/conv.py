"""Convolutions and the shift of tokens in fla."""

from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from properties.cases.case import Case
from properties.catalogue.op import Function, Op
from properties.targets.bounds import one_token_each
from properties.targets.fla.bounds import all_in_the_dtype
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import Given, Mode, Modes, Outputs

_WINDOW = "the state of a convolution is [N, D, W]: its oldest token has a weight of 0"


def _convolution(kernel: Kernel, given: Given) -> Outputs:
    """Transpose a state with channels before tokens."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = state.transpose(1, 2)
    y, state = kernel(**given)
    return y, state.transpose(1, 2).float() if given.get("output_final_state") else None


def _one_token(kernel: Kernel, given: Given) -> Outputs:
    """A state is written in place, and required."""
    x, asked = given["x"], given.pop("output_final_state", False)
    given.pop("cu_seqlens", None)
    state = given.get("cache")
    if state is None:
        D, W = given["weight"].shape
        state = torch.zeros(x.shape[0] * x.shape[1], W, D, device=x.device)
    given["cache"] = state.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    y, cache = kernel(**given)
    return y, cache.transpose(1, 2) if asked else None


def _shift(kernel: Kernel, given: Given) -> Outputs:
    """The token before the first has no axis of its own."""
    if given.get("cache") is not None:
        given["cache"] = given["cache"].squeeze(1)
    if not given.get("output_cache"):
        return kernel(**given), None
    y, state = kernel(**given)
    return y, state.view(-1, 1, state.shape[-1])


def _of_all_taps(op: Op) -> Op:
    """A convolution whose state has a token for each tap; the oldest has weight 0."""

    def with_a_tap(form: Function) -> Function:
        @wraps(form)
        def convolution(*, weight: Tensor, **given: Any) -> Outputs:
            return form(weight=functional.pad(weight, (1, 0)), **given)

        return convolution

    return replace(
        op,
        oracle=with_a_tap(op.oracle),
        second_form=with_a_tap(op.second_form),
        quiet_form=with_a_tap(op.quiet_form),
        sizes=lambda case: {"W-1": case.dims["W"]},
    )


def _float32_state(case: Case) -> Case:
    if case.dtype == "float32":
        return case
    return replace(case, given=tuple(n for n in case.given if n != "initial_state"))


def _silent_state(case: Case) -> Case:
    if case.dtype == "float32" or not case.options.get("output_final_state"):
        return case
    return replace(case, silent=tuple({**dict.fromkeys(case.silent), "final_state": None}))


MODES: Modes = {
    "short_conv": {
        "fused": Mode(
            "fla.modules.convolution:causal_conv1d",
            call=_convolution,
            whole=_of_all_taps,
            conventions=(_WINDOW,),
            bounds={"no state before tokens in 16 bits, as it is kept in theirs": _float32_state},
        ),
        "update": Mode(
            "fla.modules.convolution:causal_conv1d_update",
            call=_one_token,
            theirs={"initial_state": "cache"},
            ours=("initial_state", "output_final_state", "cu_seqlens"),
            whole=_of_all_taps,
            conventions=(_WINDOW, "it is required, and written in place"),
            bounds={"a token of each sequence": one_token_each},
            forward_only=True,
            unstated={"splitting": "it has one token"},
        ),
    },
    "token_shift": {
        "fused": Mode(
            "fla.modules.token_shift:token_shift",
            call=_shift,
            theirs={"initial_state": "cache", "output_final_state": "output_cache"},
            output_dtypes={"final_state": "case"},
            conventions=("a state has no axis of tokens",),
            bounds={
                "a state in the dtype of x": all_in_the_dtype,
                "no gradient of a state in 16 bits, as it is rounded to them": _silent_state,
            },
        )
    },
}
