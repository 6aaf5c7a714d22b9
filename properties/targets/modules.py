"""Modules that an adapter has beside ops: caches of keys and values, and rotary embeddings.

Each is a class, or a function that makes one. It is told what its signature has.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Unsupported(ValueError):
    """Raised by a module that is made with sizes that its library does not document."""


class Cache(Protocol):
    """A cache of one layer, empty when it is made.

    It may have methods besides: `crop(length)` keeps the first `length` tokens, `reorder(index)`
    makes sequence n what sequence `index[n]` was, and `reset()` forgets everything. What it lacks
    is not called. With `longest_step` it takes at most so many tokens in a call that is not its
    first, such as 1 for a cache that decodes.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append new tokens, then let each attend causally to itself and what came before.

        Args:
            q: their queries [B, T, H, K].
            k, v: their keys [B, T, G, K] and values [B, T, G, V].

        Returns:
            o [B, T, H, V]. The scale is K ** -0.5.
        """


class Rotary(Protocol):
    """A rotary embedding that makes its tables, and may keep them for the next call.

    With `scalings` it knows these alone, each a type or a dict of a type and its factors. With
    `interleaved` it pairs neighbours instead of halves, unless the signature has it.
    """

    def rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Rotate the first dims of each head of x [B, T, H, D], by positions [B, T].

        With the parameter `offset` in place of `position_ids` positions are offset, offset + 1, ...
        Scalings by the tokens so far read the last position of the call.
        """


# Parameters that a cache may have. `room` is the number of tokens that each sequence may get.
# `head_dim` asks for keys and values of one width, and a `window` without a default for one in
# every cache.
TOLD_TO_CACHES = (
    "batch",
    "query_heads",
    "heads",
    "key_dim",
    "value_dim",
    "head_dim",
    "room",
    "window",
    "dtype",
    "device",
)
# Parameters that a rotary embedding may have: `scaling` as `reference.rotary_frequencies` takes it,
# and `length`, which is more than any position. Without `rotary_dim` it rotates all dims of a head.
TOLD_TO_ROTARY = (
    "head_dim",
    "rotary_dim",
    "base",
    "scaling",
    "interleaved",
    "length",
    "dtype",
    "device",
)

Caches = Mapping[str, Callable[..., Cache]]
Rotaries = Mapping[str, Callable[..., Rotary]]


def has(function: Callable[..., object], name: str) -> bool:
    return name in inspect.signature(function).parameters


def needs(function: Callable[..., object], name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def check(what: str, modules: Mapping[str, Callable[..., object]], told: Collection[str]) -> None:
    """Check the declaration of caches or rotary embeddings.

    Raises:
        ValueError: no mapping of classes by names, or a parameter that none is told.
    """
    if not isinstance(modules, Mapping):
        raise ValueError(f"{what}: {modules!r}, expected a mapping of classes or functions")
    for name, make in modules.items():
        if not callable(make):
            raise ValueError(f"{what}: {name!r}: {make!r}, expected a class or a function")
        for parameter in inspect.signature(make).parameters:
            if parameter not in told:
                expected = f"one of {', '.join(told)}"
                raise ValueError(f"{what}: {name!r}: parameter {parameter!r}, expected {expected}")


def made(make: Callable[..., T], told: Mapping[str, Any]) -> T:
    return make(**{name: value for name, value in told.items() if has(make, name)})
