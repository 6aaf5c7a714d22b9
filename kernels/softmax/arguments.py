"""Checks of arguments that the ops over pairs of queries and keys share."""

from collections.abc import Mapping
from typing import TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from kernels.arguments import (
    check_cu_seqlens,
    check_groups,
    check_number,
    check_range,
    check_size,
    describe,
    is_normal,
)
from kernels.op import TileOption

MAX_DIM = 256
# Multi-head latent attention is served with a latent of 512 channels and a rotary key of 64.
MAX_KEY_DIM, MAX_VALUE_DIM = 576, 512
# For the docstrings of ops with queries and keys of their own lengths.
BAD_BOUNDARIES = (
    "`cu_seqlens_k` without `cu_seqlens`",
    "boundaries with B != 1, or that do not start at 0, decrease, or do not end at T_q (T_k)",
)


BAD_SOFTCAP = "a softcap that is not positive and normal in float32"


class _Pairs(TypedDict, total=False):
    """The scale, and the boundaries of packed sequences of queries and of keys."""

    scale: float | None
    cu_seqlens: Int[Tensor, "N+1"] | None
    cu_seqlens_k: Int[Tensor, "N+1"] | None


class _Lse(TypedDict, total=False):
    return_lse: bool


class Options(_Pairs, TileOption):
    """Options of an op over pairs of queries and keys."""


class LseOptions(_Pairs, _Lse, TileOption):
    """Options of one that returns the LSE as well."""


def check_heads(sizes: Mapping[str, int], queries: str = "q", keys: str = "k and v") -> None:
    """Refuse head dims that no tile holds, and heads that form no groups.

    Programs of these ops hold whole rows of queries, keys, values and their gradients. For more
    than MAX_DIM columns there are not enough registers.
    """
    for name, dim in ((f"head dim K of {queries}", "K"), ("head dim V of v", "V")):
        if sizes[dim] > MAX_DIM:
            raise ValueError(
                f"{name}: {sizes[dim]}, expected 1 to {MAX_DIM}, as a program holds whole rows "
                f"(attention and paged_attention take K to {MAX_KEY_DIM} and V to {MAX_VALUE_DIM})"
            )
        check_range(name, sizes[dim], 1, MAX_DIM)
    check_groups(sizes, queries, keys)


def check_packing(
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    sizes: Mapping[str, int],
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the boundaries of the queries and of the keys, both or neither."""
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], device)
    cu_seqlens_k = check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, sizes["B"], device)
    if cu_seqlens is None:
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k: given without cu_seqlens, expected cu_seqlens as well")
    elif cu_seqlens_k is None:
        if sizes["T_k"] != sizes["T_q"]:
            raise ValueError(
                f"cu_seqlens_k: not given, expected the boundaries of the {sizes['T_k']} keys, "
                f"as there are {sizes['T_q']} queries"
            )
        cu_seqlens_k = cu_seqlens
    elif cu_seqlens_k.shape != cu_seqlens.shape:
        raise ValueError(
            f"cu_seqlens_k: {describe(cu_seqlens_k)}, expected {describe(cu_seqlens)} "
            "like cu_seqlens"
        )
    return cu_seqlens, cu_seqlens_k


def check_window(window: int | None) -> int | None:
    """Return the window, no wider than any sequence can be."""
    return None if window is None else min(check_size("window", window), 2**31 - 1)


def check_softcap(softcap: float | None) -> float | None:
    """Return the softcap as a float."""
    check_number("softcap", softcap, optional=True)
    if softcap is None:
        return None
    if not is_normal(softcap):
        wanted = "expected a positive finite number, normal in float32"
        raise ValueError(f"softcap: {softcap}, {wanted}")
    return float(softcap)
