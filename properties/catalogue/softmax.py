"""Softmax attention."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.catalogue.declare import declare
from properties.catalogue.draws import NO_NUMBERS, WINDOW
from properties.catalogue.op import Mode, Option, Role

if TYPE_CHECKING:
    from properties.cases.tensors import Inputs


def _settle(case: Case) -> Case:
    """The forgetting gate is defined for causal attention alone."""
    if "g" in case.given:
        return replace(case, options={**case.options, "causal": True})
    return case


def _mistakes(case: Case, inputs: "Inputs") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Heads that form no groups, a gate that is not causal, boundaries that do not go together."""
    tensors = inputs.tensors
    if case.dims["R"] == 1:
        more = {name: torch.cat([tensors[name], tensors[name][:, :, :1]], 2) for name in ("k", "v")}
        yield "more heads of keys than of queries", more, "q"
    if "g" in tensors:
        yield "a gate that is not causal", {"causal": False}, "g"
    if case.packed:
        bounds = tensors.get("cu_seqlens_k", tensors["cu_seqlens"])
        yield "boundaries of keys alone", {"cu_seqlens": None, "cu_seqlens_k": bounds}, "cu_seqlens"
        another = torch.cat([bounds, bounds[-1:]])
        yield "another number of sequences of keys", {"cu_seqlens_k": another}, "cu_seqlens_k"


ATTENTION = declare(
    reference.attention,
    quiet_form=reference.attention,
    modes=(Mode("parallel"),),
    roles={"sink": Role.LOGIT, "alibi_slopes": Role.SLOPE},
    constants=("alibi_slopes",),
    nonlinear=("lse",),
    options=(
        WINDOW,
        Option(
            "softcap",
            None,
            lambda case: st.sampled_from([None, 0.5, 2, 2.0, 30.0]),
            bad=(0.0, -1.0, float("nan"), float("inf"), *NO_NUMBERS),
            switch=lambda case: 2.0,
        ),
    ),
    work=lambda n: n["H"] * n["T"] * n["S"],
    settle=_settle,
    mistakes=_mistakes,
    float32_logits=True,
    recipes=(
        "gaussian",
        "large_logits",
        "late_maximum",
        "early_maximum",
        "extreme_gates",
        "strong_gates",
        "closed_gates",
        "lowest_gates",
        "large_values",
        "uneven",
        "one_hot_values",
        "zeros",
        "cancelling",
    ),
)

MERGE_ATTENTION = declare(
    reference.merge_attention,
    modes=(Mode("fused"),),
    roles={"lse_a": Role.LOGIT, "lse_b": Role.LOGIT},
    nonlinear=("lse",),
    work=lambda n: n["H"] * n["T"] * n["V"],
    recipes=("gaussian", "empty_rows", "large_logits", "large_values", "zeros", "uneven"),
)
