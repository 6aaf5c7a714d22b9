"""Softmax attention."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.catalogue.draws import (
    BAD_FLAGS,
    BAD_SCALES,
    NO_COUNTS,
    NO_NUMBERS,
    asked,
    head_dims,
    scales,
)
from properties.catalogue.op import Argument, Mode, Op, Option, Output, Role

if TYPE_CHECKING:
    from properties.cases.tensors import Inputs


def _windows(case: Case) -> st.SearchStrategy[int | None]:
    keys, queries = max(case.key_lengths or case.lengths), max(case.lengths)
    edges = sorted({max(1, n + d) for n in (keys, queries) for d in (-1, 0, 1)} | {512, 513})
    return st.one_of(
        st.none(),
        st.integers(1, max(1, keys - 1)),
        st.sampled_from([*edges, 2**31 - 1]),
    )


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


ATTENTION = Op(
    name="attention",
    oracle=reference.attention,
    second_form=reference.attention.second_form,
    quiet_form=reference.attention,
    modes=(Mode("parallel"),),
    arguments=(
        Argument("q", "B T H K", Role.QUERY),
        Argument("k", "B S G K", Role.KEY),
        Argument("v", "B S G V", Role.VALUE),
        Argument("sink", "H", Role.LOGIT, optional=True, dtype="either"),
        Argument(
            "alibi_slopes",
            "H",
            Role.SLOPE,
            optional=True,
            differentiable=False,
            dtype="either",
        ),
        Argument("g", "B S H", Role.LOG_DECAY, optional=True, dtype="either"),
    ),
    options=(
        Option("scale", None, lambda case: scales(), bad=BAD_SCALES),
        Option("causal", False, lambda case: st.booleans(), bad=BAD_FLAGS),
        Option("window", None, _windows, bad=(0, -1, *NO_COUNTS)),
        Option(
            "softcap",
            None,
            lambda case: st.sampled_from([None, 0.5, 2, 2.0, 30.0]),
            bad=(0.0, -1.0, float("nan"), float("inf"), *NO_NUMBERS),
        ),
        Option("return_lse", False, asked, bad=BAD_FLAGS, auxiliary=True),
    ),
    outputs=(
        Output("o", "B T H V"),
        Output("lse", "B H T", asked_by="return_lse", dtype="float32", linear=False),
    ),
    dims={
        "B": st.integers(1, 3),
        "G": st.integers(1, 3),
        "R": st.integers(1, 4),
        "K": head_dims(),
        "V": head_dims(),
    },
    sizes=lambda case: {"H": case.dims["G"] * case.dims["R"]},
    work=lambda n: n["H"] * n["T"] * n["S"],
    settle=_settle,
    mistakes=_mistakes,
    packed_by=("cu_seqlens", "cu_seqlens_k"),
    keys=True,
    continues_by="keys",
    linear_in=("v",),
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
    laws=(
        "differential",
        "causality",
        "splitting",
        "packing",
        "permutation",
        "linearity",
        "scale_equivariance",
        "layout_invariance",
        "context_invariance",
        "request_invariance",
        "determinism",
        "plumbing",
        "untouched_inputs",
        "written_outputs",
        "rejection",
    ),
)
