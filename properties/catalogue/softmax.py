"""Attention by a softmax over keys, or by a sigmoid of each."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

import reference
from properties.cases import structures
from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.cases.layouts import OVERLAPPING
from properties.catalogue.declare import LOGITS, declare
from properties.catalogue.draws import NO_NUMBERS, WINDOW
from properties.catalogue.op import BadCall, Mode, Option, Role
from properties.catalogue.work import pairs


def _settle(case: Case) -> Case:
    """The forgetting gate wants causal attention, and some rules want some lengths."""
    options = dict(case.options)
    if "structure" in options:
        options["structure"] = structures.fitting(options["structure"], case)
    if max(case.dims.get("K", 1), case.dims.get("V", 1)) > 256:
        # Their gradients have no kernel for wide heads.
        case = case.without("g", "bias")
    if "g" in case.given:
        options["causal"] = True
    return replace(case, options=options)


def _bad_structures(case: Case, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    """Rules with a last number out of range, and of other sizes."""
    device = inputs.tensors["q"].device

    def numbers(*shape: int, filled: int = 0, last: int | None = None) -> torch.Tensor:
        x = torch.full(shape, filled, dtype=torch.int64, device=device)
        if last is not None:
            x.view(-1)[-1] = last
        return x

    (batch, queries), keys = inputs.tensors["q"].shape[:2], inputs.tensors["k"].shape[1]
    yield "of another batch", {"document_ids": numbers(batch + 1, keys)}
    yield "of floats", {"document_ids": numbers(batch, keys).float()}
    yield "too short", {"prefix": numbers(case.sequences + 1)}
    yield "longer than the keys", {"prefix": numbers(case.sequences, last=keys + 1)}
    yield "a tree of other queries", {"parents": numbers(queries + 1, filled=-1)}
    if keys:
        yield "a negative document", {"document_ids": numbers(batch, keys, last=-1)}
    if queries:
        own = next(length for length in reversed(case.lengths) if length) - 1
        yield "a parent of itself", {"parents": numbers(queries, filled=-1, last=own)}
        yield "a parent before none", {"parents": numbers(queries, filled=-1, last=-2)}
    table = numbers(1, -(-queries // 2), -(-keys // 2)) == 0
    yield "a table without a size", {"blocks": table}
    if max(queries, keys) > 2:
        yield "a table too large", {"blocks": table, "block_size": max(queries, keys)}
    yield "a table of numbers", {"blocks": table.int(), "block_size": 2}
    if case.packed:
        yield "a table of packed sequences", {"blocks": table, "block_size": 2}


def _mistakes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Heads that form no groups, a gate that is not causal, boundaries that do not go together,
    masks of another size.
    """
    tensors = inputs.tensors
    for what, rules in _bad_structures(case, inputs):
        yield f"rules {what}", {"structure": rules}, "structure"
    heads = (*tensors["q"].shape[:1], tensors["q"].shape[2])
    wanted = (*heads, tensors["q"].shape[1], tensors["k"].shape[1])
    for name in ("mask", "bias"):
        for axis, size in enumerate(wanted if name in tensors else ()):
            shape = [*tensors[name].shape]
            shape[axis] = size + 1 if size else 2
            yield f"{name} of another size", {name: tensors[name].new_ones(shape)}, name
    if case.dims["R"] == 1:
        more = {name: torch.cat([tensors[name], tensors[name][:, :, :1]], 2) for name in ("k", "v")}
        yield "more heads of keys than of queries", more, "q"
    if "g" in tensors:
        yield "a gate that is not causal", {"causal": False}, "g"
    yield from unfit_packs(case, inputs)


def unfit_packs(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Boundaries of queries and of keys that do not go together."""
    if case.packed:
        bounds = inputs.tensors.get("cu_seqlens_k", inputs.tensors["cu_seqlens"])
        yield "boundaries of keys alone", {"cu_seqlens": None, "cu_seqlens_k": bounds}, "cu_seqlens"
        another = torch.cat([bounds, bounds[-1:]])
        yield "another number of sequences of keys", {"cu_seqlens_k": another}, "cu_seqlens_k"


def _with_shut_gates(
    case: Case, sizes: Mapping[str, int], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Make gates below -2^17 -inf, as kernels do, where a query may see no key but those behind.

    Its own key is behind none, so only what hides that makes a difference.
    """
    hides = {"mask", "bias"} & {*case.given} or "blocks" in (case.options.get("structure") or {})
    if "g" not in tensors or not hides:
        return tensors
    return {**tensors, "g": tensors["g"].masked_fill(tensors["g"] < -(2.0**17), -torch.inf)}


ATTENTION = declare(
    reference.attention,
    # Latent attention in its absorbed form.
    widest={"K": 576, "V": 512},
    amend=_with_shut_gates,
    modes=(Mode("parallel"),),
    roles={
        "sink": Role.LOGIT,
        "alibi_slopes": Role.FACTOR,
        "bias": Role.BIAS,
        "mask": Role.MASK,
    },
    constants=("alibi_slopes", "mask"),
    nonlinear=("lse",),
    options=(
        WINDOW,
        Option(
            "softcap",
            None,
            lambda case: st.sampled_from([None, 0.5, 2, 2.0, 30.0, 1e3, 1e4]),
            bad=(0.0, -1.0, float("nan"), float("inf"), *NO_NUMBERS),
            switch=lambda case: 2.0,
        ),
        Option(
            "structure",
            None,
            structures.draw_rules,
            bad=(
                "chunk",
                2,
                {"chunks": 2},
                {"chunk": 0},
                {"dilation": -1},
                {"block_causal": 2.0},
                {"chunk": True},
                {"prefix": 2},
                {"parents": [-1]},
                {"block_size": 2},
            ),
            switch=lambda case: {"chunk": 2},
        ),
    ),
    work=pairs,
    settle=_settle,
    mistakes=_mistakes,
    float32_logits=True,
    of_any_size=lambda case: ("v",),
    recipes=(
        "gaussian",
        "large_logits",
        "late_maximum",
        "early_maximum",
        "extreme_gates",
        "strong_gates",
        "shut_gates",
        "closed_gates",
        "lowest_gates",
        "hidden_rows",
        "hidden_tiles",
        "large_values",
        "offset",
        "uneven",
        "one_hot_values",
        "zeros",
        "cancelling",
    ),
)


def _of_no_keys(
    case: Case, sizes: Mapping[str, int], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Put NaN into what a part without keys says: its o is not read."""
    tensors = dict(tensors)
    for o, lse in (("o_a", "lse_a"), ("o_b", "lse_b")):
        # Elements that share an address share what it holds.
        if not case.same and not {case.layout_of(o), case.layout_of(lse)} & {*OVERLAPPING}:
            nothing = (tensors[lse] == -torch.inf).transpose(1, 2)[..., None]
            tensors[o] = tensors[o].masked_fill(nothing, torch.nan)
    return tensors


MERGE_ATTENTION = declare(
    reference.merge_attention,
    in_float32=True,
    amend=_of_no_keys,
    modes=(Mode("fused"),),
    roles={"lse_a": Role.LOGIT, "lse_b": Role.LOGIT},
    nonlinear=("lse",),
    work=lambda n: n["H"] * n["T"] * n["V"],
    of_any_size=lambda case: ("o_a", "o_b", "lse_a", "lse_b"),
    recipes=("gaussian", "empty_rows", "large_logits", "large_values", "offset", "zeros", "uneven"),
)

SIGMOID_ATTENTION = declare(
    reference.sigmoid_attention,
    modes=(Mode("parallel"),),
    options=(
        WINDOW,
        Option(
            "bias",
            None,
            lambda case: st.sampled_from([None, 0.0, -2, -4.5, 3.0, -30.0]),
            bad=(float("nan"), float("inf"), float("-inf"), *NO_NUMBERS),
            switch=lambda case: -1.5,
        ),
    ),
    work=pairs,
    mistakes=_mistakes,
    float32_logits=True,
    of_any_size=lambda case: ("v",),
    recipes=LOGITS,
)
