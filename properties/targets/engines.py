"""Shared by the adapters of inference engines: layouts, and the bounds of their kernels."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.adapter import Adapter, Implementation, without
from properties.targets.bare import Absent
from properties.targets.bounds import Bound, changed_dims, one_token_each, with_keys
from properties.targets.ledger import Given

SCALE = "the sentinel -1 and None become K ** -0.5"
UNCHECKED = {"rejection": "only its server calls it, and no error is documented"}
FEW_TOKENS = {"large_calls": "a server has large pools, but calls of few tokens"}
engine_kernel = partial(
    Implementation, dtypes=("bfloat16", "float16"), forward_only=True, unstated=UNCHECKED
)
"""An implementation, with what holds for every kernel of an engine."""


def of_release(declared: Mapping[str, Mapping[str, Callable[[], Implementation]]]) -> Adapter:
    """Make a target of the implementations whose kernels the installed release has.

    Args:
        declared: op → mode → its implementation, if called.

    Raises:
        ValueError: the package is not installed.
    """
    made: dict[str, dict[str, Implementation]] = {}
    remarks: list[str] = []
    for op, modes in declared.items():
        for mode, implementation in modes.items():
            try:
                made.setdefault(op, {})[mode] = implementation()
            except (Absent, ImportError) as error:
                remarks.append(f"{op} ({mode}) is left out: {error}")
    return Adapter(made, triton=True, remarks=tuple(remarks))


def takes(run: Callable[..., Any], name: str) -> bool:
    """Whether a kernel of the release has an argument."""
    return name in inspect.signature(run).parameters


def as_taken(
    function: Callable[..., Any], library: Callable[..., Any], **theirs: str
) -> Callable[..., Any]:
    """The function, without arguments that the release lacks: ours by theirs."""
    lacking = [ours for ours, name in theirs.items() if not takes(library, name)]
    return without(function, lacking)


def those_taken(run: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Arguments that a kernel of the release has."""
    return {name: value for name, value in given.items() if takes(run, name)}


WIDE: dict[str, Bound] = {
    "head dims of 16 to 256": changed_dims("KV", lambda n: min(max(n, 16), 256))
}


def _latent(case: Case) -> Case:
    """One head of keys for all queries, whose first channels are the values."""
    values = min(max(case.dims["V"], 16), 512)
    keys = min(max(case.dims["K"], values), 576)
    return replace(
        case,
        same={"v_pages": "k_pages"},
        layouts={name: layout for name, layout in case.layouts.items() if name != "v_pages"},
    ).with_dims(G=1, K=keys, V=values)


LATENT: dict[str, Bound] = {
    "values that are the first 16 to 512 channels of keys of 576 or fewer, of one head": _latent
}
NOT_LINEAR = {"linearity": "its values are keys"}


def first_channels(copied: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
    """Values in a copy of the keys that they are a part of.

    Raises:
        ValueError: they are no part of the keys.
    """
    if v_pages.data_ptr() != k_pages.data_ptr() or v_pages.shape[:-1] != k_pages.shape[:-1]:
        raise ValueError("v_pages: a tensor of its own, expected the first channels of k_pages")
    return copied[..., : v_pages.shape[-1]]


def scale_of(scale: float | None, q: Tensor) -> float:
    return float(q.shape[-1] ** -0.5 if scale is None or scale == -1 else scale)


def ends(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Boundaries of sequences, those of a batch too."""
    if cu_seqlens is not None:
        return cu_seqlens.int()
    return x.shape[1] * torch.arange(len(x) + 1, dtype=torch.int32, device=x.device)


def most(counts: Tensor) -> int:
    return int(counts.max()) if len(counts) else 0


def part_is_empty(given: Given) -> bool:
    """Whether a row of a part that is merged has no key."""
    return bool((given["lse_a"].isneginf() | given["lse_b"].isneginf()).any())


def largest_logit(given: Given) -> float:
    """An upper bound of the logits' absolute values; rows of pages that nobody reads are NaN."""
    scale, q, k = given["scale"], given["q"].double(), given["k_pages"].double().nan_to_num()
    if not q.numel() or not k.numel():
        return 0.0
    return abs(scale_of(scale, q)) * float(q.norm(dim=-1).max() * k.norm(dim=-1).max())


def heads_are_alone(given: Given) -> bool:
    """Whether each head of queries has keys of its own."""
    return bool(given["q"].shape[2] == given["k_pages"].shape[2])


def one_query(case: Case) -> Case:
    """A query for each sequence, and keys for it."""
    return with_keys(one_token_each(case))
